"""Jobs that are cancelled while they have a phase, or before they have a place; the journal's audit agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.journal.facts import IterationSlice, JobCancelled
from tests.runtime.pretend import PAIR, Served, attached_plan, job, served


@pytest.mark.parametrize("iterations", [1, 3])
def test_what_a_cancelled_job_still_does_counts_no_iteration(iterations: int, tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.phase(lease, "rollout", 0)
        assert (await run.leases.acquire(lease, "training", 0, 60.0))["granted"]
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        assert (await run.leases.heartbeat(lease))["stop"]
        await run.leases.release(lease, "training", 0, {}, None)
        await run.settle()
        facts = await run.stop()
        assert any(isinstance(fact, JobCancelled) for fact in facts)
        assert not any(isinstance(fact, IterationSlice) for fact in facts)

    served(work, attached_plan(tmp_path, job("a", iterations=iterations)))


def test_a_cancelled_job_is_not_done_because_its_owner_says_so(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.leases.end(lease, done=True)
        await run.settle()
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_job_that_is_cancelled_in_the_queue_has_gone(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        first = await run.place("first")
        assert (await run.leases.attach("waits", 0.0, "", ()))["position"] == 1
        await run.driver.lifecycle.cancel(run.driver.run.handles["waits"])
        await run.settle()
        await run.iterate(first, 0)
        await run.stop()

    large = {"worst_case_s": 10.0, "host_memory_gb": 5.0}
    jobs = (job("first", rollout=large), job("waits", rollout=large))
    served(work, attached_plan(tmp_path, *jobs, nodes=PAIR))


def test_a_job_may_be_cancelled_between_its_last_iteration_and_the_end_of_its_owner(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        await run.leases.end(lease, done=True)
        await run.settle()
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", iterations=1)))
