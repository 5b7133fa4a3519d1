"""Work per node-hour against the jobs alone: as long as their phases are, not as long as they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.coordinator.run_plan import LeaseRules
from runtime.service.report import groups_of, throughput_gain
from tests.runtime.pretend import Served, attached_plan, job, served

_LONG = {"worst_case_s": 10_000.0, "host_memory_gb": 1.0}
_PHASE_S = 1000.0  # beside which what this process takes is nothing


def test_jobs_that_are_far_below_their_worst_case_gain_no_more_than_they_share(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        def gain() -> float | None:
            return throughput_gain(run.driver.run, groups_of(run.driver.run))

        a, b = await run.place("a"), await run.place("b")
        await run.leases.acquire(a, "rollout", 0, 60.0)
        for number in range(10):  # while one samples, the other one trains
            run.pass_time(_PHASE_S)
            await run.leases.release(a, "rollout", number)
            if number:
                await run.leases.release(b, "training", number - 1)
            await run.leases.acquire(b, "rollout", number, 60.0)
            await run.leases.acquire(a, "training", number, 60.0)
            run.pass_time(_PHASE_S)
            await run.leases.release(a, "training", number)
            await run.leases.release(b, "rollout", number)
            await run.leases.acquire(a, "rollout", number + 1, 60.0)
            await run.leases.acquire(b, "training", number, 60.0)
            if number < 4:  # a cold one does not count, and four have to
                assert gain() is None
        assert gain() == pytest.approx(2.0, rel=0.01)
        await run.stop(permits=False)

    jobs = (job(name, iterations=20, rollout=_LONG, training=_LONG) for name in ("a", "b"))
    served(work, attached_plan(tmp_path, *jobs, leases=LeaseRules(ttl_s=1e9)))
