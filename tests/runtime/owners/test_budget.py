"""An attached job whose budget is spent ends with its iteration, and its owner is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import Conflict
from runtime.journal.audit import audit
from runtime.journal.facts import Iteration
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
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", budget={"hours": 1e-9}, sync_s=sync_s)))
    assert sum(isinstance(fact, Iteration) for fact in facts) == 1
    assert record_of(facts).over_budget == {"a"}
    assert audit(facts).jobs == {"a": "over_budget"} and audit(facts).problems == ()
    assert replay_journal(facts).lines == ()


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
        assert await run.leases.acquire(lease, "rollout", 0, 5.0) == {"granted": False}
        await run.settle()
        with pytest.raises(Conflict, match="this lease is over: cancelled"):
            await run.leases.acquire(lease, "rollout", 0, 5.0)
        return await run.stop(permits=False)

    facts = served(work, attached_plan(tmp_path, job("a", budget={"hours": 1e-9}, staleness=1)))
    assert audit(facts).jobs == {"a": "cancelled"} and audit(facts).problems == ()
