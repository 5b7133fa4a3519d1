"""Attached jobs with a staleness: a lease holds a rollout and a training at once, and keeps both when coordinators are replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollmux_env.errors import Conflict
from rollmux_env.scheduler.view import HoldName
from runtime.journal.facts import IterationSlice, PhaseSlice
from tests.runtime.owners.test_leases import of
from tests.runtime.pretend import Served, attached_plan, job, served


def test_two_loops_of_an_owner_run_side_by_side_as_far_as_the_staleness_allows(tmp_path: Path) -> None:
    """The loops know nothing of each other: a rollout waits for the weights that it needs, a training for its rollout."""
    both: list[bool] = []

    async def work(run: Served) -> None:
        lease = await run.place("a")

        async def sample() -> None:
            for number in range(4):
                assert (await run.leases.acquire(lease, "rollout", number, 30.0))["granted"]
                iterations = run.driver.run.handles["a"].iteration
                assert number <= iterations + 1
                await asyncio.sleep(0.01)
                both.append(len(run.driver.run.handles["a"].permits.holds) == 2)
                await run.leases.release(lease, "rollout", number, {"reward": float(number)}, None)

        async def train() -> None:
            for number in range(4):
                assert (await run.leases.acquire(lease, "training", number, 30.0))["granted"]
                await asyncio.sleep(0.02)
                await run.leases.release(lease, "training", number, {"loss": 10.0 * number}, None)
                await run.leases.synced(lease, number, 0.001)

        await asyncio.gather(sample(), train())
        assert await run.leases.end(lease, done=True) == {}
        facts = await run.stop()
        done = of(facts, IterationSlice, "a")
        assert [(one.number, one.metrics) for one in done] == [(k, {"reward": float(k), "loss": 10.0 * k}) for k in range(4)]
        for phase in ("rollout", "training"):
            assert [part.iteration for part in of(facts, PhaseSlice, "a") if part.phase == phase] == [0, 1, 2, 3]

    served(work, attached_plan(tmp_path, job("a", iterations=4, staleness=1, sync_s=0.1)))
    assert any(both)


def test_a_loop_that_is_ahead_waits_and_one_out_of_order_is_refused(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, leases = await run.place("a"), run.leases
        assert (await leases.acquire(lease, "training", 0, 0.0)) == {"granted": False}
        await run.phase(lease, "rollout", 0)
        await run.phase(lease, "rollout", 1)
        assert (await leases.acquire(lease, "rollout", 2, 0.0)) == {"granted": False}  # iteration 0 is not over
        assert (await leases.acquire(lease, "training", 0, 60.0))["granted"]
        others: tuple[tuple[HoldName, int], ...] = (("rollout", 3), ("training", 1))
        for phase, number in others:
            with pytest.raises(Conflict):
                await leases.acquire(lease, phase, number, 0.0)
        await leases.release(lease, "training", 0, {}, None)
        assert (await leases.acquire(lease, "rollout", 2, 60.0))["granted"]
        await run.phase(lease, "training", 1)
        await leases.release(lease, "rollout", 2, {}, None)
        await run.phase(lease, "training", 2)
        await leases.end(lease, done=True)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", staleness=1)))


def test_what_both_sides_hold_outlives_the_coordinator(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        await run.phase(a, "rollout", 0)
        assert (await run.leases.acquire(a, "training", 0, 60.0))["granted"]
        assert (await run.leases.acquire(a, "rollout", 1, 60.0))["granted"]
        other = await run.replaced()
        assert other.driver.run.handles["a"].permits.holds.keys() == {"rollout", "training"}
        assert (await other.leases.acquire(b, "rollout", 0, 0.0)) == {"granted": False}  # it comes after both
        await other.leases.release(a, "rollout", 1, {}, None)
        await other.phase(b, "rollout", 0)
        assert (await other.leases.acquire(b, "training", 0, 0.0)) == {"granted": False}
        await other.leases.release(a, "training", 0, {}, None)
        await other.phase(a, "training", 1)
        await other.phase(b, "training", 0)
        facts = await other.stop()
        assert [[done.number for done in of(facts, IterationSlice, name)] for name in "ab"] == [[0, 1], [0]]

    large = {"worst_case_s": 10.0, "host_memory_gb": 1.0}
    jobs = [job(name, staleness=1, rollout=large, training=large) for name in "ab"]
    served(work, attached_plan(tmp_path, *jobs, policy="rollmux,prune=false", dispatch="round-robin"))


def test_a_lease_that_is_lost_suspects_what_either_side_held(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a = await run.place("a", "another-host", (7,))
        await run.phase(a, "rollout", 0)
        assert (await run.leases.acquire(a, "training", 0, 60.0))["granted"]
        assert (await run.leases.acquire(a, "rollout", 1, 60.0))["granted"]
        run.pass_time(31.0)
        await run.settle()
        assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a", "training-0": "a"}
        assert run.leases.ledger.clear("rollout-0") == run.leases.ledger.clear("training-0") == ("a",)
        await run.settle()
        assert not run.leases.ledger.suspect_nodes() and not run.driver.run.handles["a"].permits.holds
        await run.stop(permits=False)

    served(work, attached_plan(tmp_path, job("a", staleness=1)))
