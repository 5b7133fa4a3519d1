"""An attached job whose budget is spent ends with its iteration, and its owner is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import Conflict
from runtime.journal.audit import audit
from runtime.journal.facts import IterationSlice
from runtime.journal.replay import replay_journal
from runtime.journal.write import record_of
from tests.runtime.pretend import Served, attached_plan, job, served


@pytest.mark.parametrize("sync_s", [0.0, 0.5])
def test_a_lease_is_over_when_the_budget_of_its_job_is_spent(tmp_path: Path, sync_s: float) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        for phase in ("rollout", "training"):
            await run.phase(lease, phase, 0)
        if sync_s:
            assert await run.leases.heartbeat(lease, ()) == {"stop": False}
            await run.leases.synced(lease, 0, sync_s)
        assert await run.leases.heartbeat(lease, ()) == {"stop": True}
        with pytest.raises(Conflict, match="this lease is over: its budget is spent"):
            await run.leases.acquire(lease, "rollout", 1, 0.0)
        with pytest.raises(Conflict, match="job a: has ended"):
            await run.leases.attach("a", 0.0, "", ())
        assert await run.leases.end(lease, done=True) == {}
        lines = run.driver.run.log.lines(0)
        assert any(line.endswith("a: its budget is spent after 1 of 3 iterations; it ends") for line in lines), lines
        assert not any("done after" in line for line in lines)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", budget={"hours": 1e-9}, sync_s=sync_s)))
    assert sum(isinstance(fact, IterationSlice) for fact in facts) == 1
    assert record_of(facts).over_budget == {"a"}
    assert audit(facts).jobs == {"a": "over_budget"} and audit(facts).problems == ()
    assert replay_journal(facts).lines == ()


def test_the_owner_of_a_lease_that_is_over_is_told_to_stop_and_not_that_it_is_lost_also_by_the_next_service(tmp_path: Path) -> None:
    """It would be killed, instead of ending before its next phase."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        await run.leases.synced(lease, 0, 0.1)
        other = await run.replaced()
        for service in (run, other):
            assert await service.leases.heartbeat(lease) == {"stop": True}
        await other.stop()

    served(work, attached_plan(tmp_path, job("a", budget={"hours": 1e-9}, sync_s=0.5)))


def test_the_rollout_that_ends_an_iteration_whose_sync_nobody_reports_is_refused(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        for phase in ("rollout", "training"):
            await run.phase(lease, phase, 0)
        with pytest.raises(Conflict, match="its budget is spent"):
            await run.leases.acquire(lease, "rollout", 1, 0.0)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", budget={"usd": 1e-12}, sync_s=0.5)))
    assert record_of(facts).over_budget == {"a"} and replay_journal(facts).lines == ()


def test_a_job_that_is_cancelled_when_its_budget_is_spent_ends_once(tmp_path: Path) -> None:
    """Found on a simulated schedule: its owner asked between the cancellation and what follows from it."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        assert await run.leases.acquire(lease, "rollout", 0, 60.0) == {"granted": False}
        await run.settle()
        with pytest.raises(Conflict, match="this lease is over: cancelled"):
            await run.leases.acquire(lease, "rollout", 0, 60.0)
        return await run.stop(permits=False)

    facts = served(work, attached_plan(tmp_path, job("a", budget={"hours": 1e-9}, staleness=1)))
    assert audit(facts).jobs == {"a": "cancelled"} and audit(facts).problems == ()


def test_a_job_with_all_its_iterations_counted_needs_no_budget_to_end_well(tmp_path: Path) -> None:
    """Found on a simulated schedule: the next owner of an asynchronous job waited for its init until it was ended."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        await run.leases.end(lease)
        await run.settle()
        lease = await run.place("a")
        run.pass_time(20.0)
        assert (await run.leases.acquire(lease, "init", None, 0.1))["granted"]
        await run.leases.release(lease, "init", None)
        await run.leases.end(lease, done=True)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", iterations=1, staleness=1, budget={"hours": 0.005})))
    assert audit(facts).jobs == {"a": "done"} and audit(facts).problems == ()
    assert replay_journal(facts).lines == ()


def test_the_sync_of_an_iteration_is_granted_to_an_asynchronous_job_whose_budget_is_spent(tmp_path: Path) -> None:
    """It waited for ever, since no job ends within an iteration."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        run.pass_time(20.0)
        assert (await run.leases.acquire(lease, "sync", 0, 0.1))["granted"]
        await run.leases.release(lease, "sync", 0)
        await run.leases.synced(lease, 0, 0.1)
        assert await run.leases.heartbeat(lease, ()) == {"stop": True}
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", staleness=1, sync_s=0.5, budget={"hours": 0.005})))
    assert audit(facts).jobs == {"a": "over_budget"} and replay_journal(facts).lines == ()
