"""A request that comes twice, the second time when its owner is further, takes nothing from it."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.pretend import Served, attached_plan, job, served


def test_the_end_of_an_evaluation_that_comes_twice_is_not_that_of_the_rollout_after_it(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, other = await run.place("a"), await run.place("b")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0, extra=True))["granted"]
        await run.leases.release(lease, "rollout", 0, extra=True)
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await run.leases.release(lease, "rollout", 0, extra=True)
        assert not (await run.leases.acquire(other, "rollout", 0, 0.0))["granted"]
        await run.leases.release(lease, "rollout", 0)
        assert (await run.leases.acquire(other, "rollout", 0, 60.0))["granted"]
        await run.stop(permits=False)

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_the_end_of_an_evaluation_that_comes_again_after_a_restart_is_known(tmp_path: Path) -> None:
    """Its answer was lost with the coordinator."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0, extra=True))["granted"]
        await run.leases.release(lease, "rollout", 0, extra=True)
        other = await run.replaced()
        await other.leases.release(lease, "rollout", 0, extra=True)
        await other.iterate(lease, 0)
        await other.stop()

    served(work, attached_plan(tmp_path, job("a")))
