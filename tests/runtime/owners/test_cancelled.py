"""Jobs that are cancelled while they have a phase, or before they have a place; the journal's audit agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollmux_env.errors import Conflict
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


def test_a_job_whose_owner_waits_for_a_place_since_the_former_service_is_over_when_it_is_cancelled(tmp_path: Path) -> None:
    """Found on a simulated schedule: it was measured, its only node was drained, and its owner heard nothing of the end."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.phase(lease, "rollout", 0)
        assert (await run.leases.acquire(lease, "training", 0, 60.0))["granted"]
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.leases.release(lease, "training", 0)
        await run.settle()
        run = await run.replaced()
        waits = asyncio.ensure_future(run.leases.acquire(lease, "rollout", 1, 60.0))
        await run.settle()
        assert not waits.done()
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        with pytest.raises(Conflict, match="job a: this lease is over: cancelled"):
            await waits
        assert (await run.leases.heartbeat(lease))["stop"]
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone
        await run.stop(permits=False)

    measured = job("a", rollout={}, training={}, profile={"iterations": 1}, iterations=2, slo=1e9)
    served(work, attached_plan(tmp_path, measured, nodes=PAIR))
