"""Built-in jobs with a staleness, on real engines and trainers: two sides at once, bounded versions, samples that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.execution.checks import check_run
from runtime.facts import PhaseSlice
from runtime.journal import JOURNAL, read_facts
from runtime.journal_replay import replay_journal
from runtime.record import RunRecord
from runtime.report.figures import figures
from tests.runtime.execution.conftest import Running, nodes, run
from tests.runtime.grpo.test_job import job

__all__ = ["nodes", "run"]


def _phases(record: RunRecord, job_id: str, phase: str) -> list[PhaseSlice]:
    return [part for part in record.phases if part.job_id == job_id and part.phase == phase and not part.profile]


def check_versions(record: RunRecord, job_id: str, staleness: int, iterations: int) -> list[int]:
    """The numbers of a job's iterations are all there, and no sample was too old; returns how old the oldest of each was."""
    check_run(record)
    mine = [done for done in record.iterations if done.job_id == job_id]
    assert [done.number for done in mine] == [*range(iterations)]
    assert [done.metrics["trained_version"] for done in mine] == [*range(iterations)]
    ages = [int(done.metrics["trained_version"] - done.metrics["sampled_version"]) for done in mine]
    assert all(0 <= age <= staleness and 0 <= done.metrics["staleness"] <= age for age, done in zip(ages, mine, strict=True))
    return ages


def test_a_job_samples_while_it_trains_and_no_sample_is_too_old(run: Running, tmp_path: Path) -> None:
    more: dict[str, Any] = {"staleness": 1, "iterations": 5, "checkpoint": {"every": 1}}
    jobs = [job("a", seed=1, **more), job("b", seed=2, rollout={"engine": "torch", "interruptible": True}, **more)]
    outcome, record, _ = run(jobs, policy="rollmux,prune=false", folder=tmp_path)
    assert outcome == "done" and not record.failed
    for name in "ab":
        ages = check_versions(record, name, 1, 5)
        rollouts, trainings = (_phases(record, name, phase) for phase in ("rollout", "training"))
        assert [part.iteration for part in rollouts] == [part.iteration for part in trainings] == [0, 1, 2, 3, 4]
        assert 1 in ages
        assert all(later.asked_s < before.end_s for later, before in zip(rollouts[1:], trainings, strict=False))
        assert figures(record)["jobs"][name]["staleness_max"] == 1
    assert all(record.jobs[name].staleness == 1 for name in "ab")
    assert replay_journal(read_facts(tmp_path / JOURNAL)).lines == ()
