"""A job that waits for a place has no processes; processes are pretended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_plan import RunPlan
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.run.driver import RunDriver
from tests.runtime.pretend import Pretended, plan_of


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


class Counted(Pretended):
    """Knows how many jobs had processes at once: on two pairs of nodes two have places, and two may be about to end."""

    most = 0

    def start(self, handle: JobHandle) -> object:
        controller = super().start(handle)
        self.most = max(self.most, sum(not task.done() for task in self.living.values()))
        return controller


def carry_out(plan: RunPlan, **more: Any) -> Counted:
    """A run that ends by itself, or is stopped."""
    processes = Counted(**more)

    async def main() -> str:
        driver = processes.driver = RunDriver(plan, processes)
        return await driver.carry_out()

    assert asyncio.run(main()) == ("stopped" if more else "done")
    facts = read_facts(Path(plan.folder) / JOURNAL)
    assert audit(facts).problems == ()
    record = record_of(facts)
    if not more:
        for spec in plan.specs:
            assert [done.number for done in record.iterations if done.job_id == spec.id] == [*range(spec.iterations)]
    return processes


def jobs(count: int, **options: Any) -> list[dict[str, Any]]:
    return [{"id": f"j{k}", "iterations": 4, "slo": 1.0, "options": options} for k in range(count)]


def test_jobs_whose_profile_is_known_have_no_processes_while_they_wait(tmp_path: Path) -> None:
    for name in ("first", "run"):
        (tmp_path / name).mkdir()
    carry_out(plan_of(tmp_path / "first", jobs(1), policy="solo"))
    assert carry_out(plan_of(tmp_path / "run", jobs(12), policy="solo")).most <= 4


def test_of_many_that_are_profiled_together_those_that_have_been_do_not_keep_their_processes(tmp_path: Path) -> None:
    many = [{**job, "options": {"keeps": True, "number": k}} for k, job in enumerate(jobs(20))]
    assert carry_out(plan_of(tmp_path, many, policy="solo")).most <= 10  # eight are profiled together, and two may end


def test_jobs_that_waited_when_the_run_was_stopped_have_no_processes_when_it_goes_on(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, jobs(6), policy="solo")
    carry_out(plan, stops_after=2)
    assert carry_out(replace(plan, resume=True)).most <= 4
