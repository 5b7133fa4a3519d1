"""A run that is killed at any write to its journal, or at several, comes to the same end; its processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Departed
from runtime.audit import audit
from runtime.checkpoints import numbers
from runtime.journal import JOURNAL, read_facts, record_of, state_of
from runtime.record import RunRecord
from tests.runtime.execution.pretend import carry_out, plan_of

ITERATIONS = 3
JOBS: list[dict[str, Any]] = [{"id": name, "iterations": ITERATIONS} for name in "ab"]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def record_in(folder: Path) -> RunRecord:
    return record_of(read_facts(folder / JOURNAL))


def check_end(folder: Path, jobs: list[dict[str, Any]] = JOBS) -> RunRecord:
    """Everything was done once, in order, on what had been done before."""
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert record.ended is not None and record.ended.outcome == "done" and not record.failed
    for job in jobs:
        mine = [done for done in record.iterations if done.job_id == job["id"]]
        assert [done.metrics["count"] for done in mine] == [*range(1, job["iterations"] + 1)]
    state = state_of(record)
    assert not state.group_list() and not state.waiting and state.rollout_nodes == state.training_nodes == 0
    assert len([fact for fact in facts if isinstance(fact, Departed)]) >= len(jobs)
    return record


def test_a_run_of_pretended_jobs_is_a_run(tmp_path: Path) -> None:
    assert carry_out(plan_of(tmp_path, JOBS)) == "done"
    record = check_end(tmp_path)
    assert not record.repeated and not record.restarted
    for name in "ab":
        assert numbers(tmp_path / "checkpoints" / name) == [2, 3]


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_write_a_run_goes_on_and_repeats_nothing(tmp_path: Path, before: bool) -> None:
    jobs = [*JOBS, {"id": "late", "iterations": 2, "arrival_s": 0.05}]
    for dies_at in range(2, 1000):
        folder = tmp_path / f"{dies_at}"
        folder.mkdir()
        plan = plan_of(folder, jobs)
        outcome = carry_out(plan, dies_at, before)
        if outcome == "done":
            break
        known = record_in(folder)
        if known.ended is not None:
            continue  # killed after its last word
        assert carry_out(replace(plan, resume=True)) == "done"
        record = check_end(folder, jobs)
        assert not record.repeated
        assert record.iterations[: len(known.iterations)] == known.iterations
        assert record.relaunched[0].at_s == known.last_s
    assert outcome == "done" and dies_at > 15
