"""Built-in jobs with a staleness, on real engines and trainers: two sides at once, bounded versions, samples that are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Moved
from rollmux_env.scheduler.facts import Continued
from runtime.journal.audit import audit, check_run
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, read_run
from runtime.machine import Node
from runtime.report.figures import figures
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.test_job import SMALL, job, toy

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


INTERRUPTIBLE = {"engine": "torch", "interruptible": True}


@pytest.mark.parametrize(
    ("rollouts", "others"),
    [((INTERRUPTIBLE,), (toy("other", 0.1, 5),)), pytest.param((SMALL["rollout"], INTERRUPTIBLE), (), marks=pytest.mark.long)],
)
def test_a_job_samples_while_it_trains_and_no_sample_is_too_old(
    run: Running, tmp_path: Path, rollouts: tuple[dict[str, Any], ...], others: tuple[dict[str, Any], ...]
) -> None:
    """Beside a job that does not, and beside another one that does."""
    more: dict[str, Any] = {"staleness": 1, "iterations": 5, "checkpoint": {"every": 1}}
    mine = {f"stale-{seed}": job(f"stale-{seed}", seed=seed, rollout=rollout, **more) for seed, rollout in enumerate(rollouts)}
    outcome, record, _ = run([*mine.values(), *others], policy="rollmux,prune=false", folder=tmp_path)
    assert outcome == "done" and not record.failed
    for name in mine:
        ages = check_versions(record, name, 1, 5)
        sampled, trained = (_phases(record, name, phase) for phase in ("rollout", "training"))
        assert [part.iteration for part in sampled] == [part.iteration for part in trained] == [0, 1, 2, 3, 4]
        assert all(later.asked_s < before.end_s for later, before in zip(sampled[1:], trained, strict=False))
        assert figures(record)["jobs"][name]["staleness_max"] == max(ages)
    assert all(record.jobs[name].staleness == 1 for name in mine)
    assert replay_journal(read_facts(tmp_path / JOURNAL)).lines == ()


@pytest.mark.long
def test_a_moved_job_goes_on_with_its_samples(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    twice = (*nodes, *(replace(node, name=node.name.replace("0", "1")) for node in nodes))
    options = {"journal": str(tmp_path / "x" / JOURNAL), "does": {"rollout 1": "fact Moved mover"}}
    stays = {"id": "stays", "class": "toy_jobs:Sleeper", "options": options, "iterations": 8, "slo": 1000.0}
    mover = job("mover", iterations=12, staleness=2, checkpoint={"every": 1})
    policy = "tests.runtime.toy_policies:MoveOnce"
    outcome, record, _ = run([mover, stays], policy=policy, on=twice, folder=tmp_path / "x")
    assert outcome == "done" and not record.failed and any(isinstance(event, Moved) for event in record.log)
    check_versions(record, "mover", 2, 12)
    rollouts = _phases(record, "mover", "rollout")
    assert [part.iteration for part in rollouts] == [*range(12)] and {part.group for part in rollouts} == {0, 1}
    assert {part.group for part in record.phases if part.job_id == "mover" and not part.profile} == {0, 1}


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_with_the_samples_of_the_last_checkpoint(tmp_path: Path) -> None:
    file, folder = tmp_path / "jobs.json", tmp_path / "out"
    mine = job("a", iterations=30, staleness=1, checkpoint={"every": 1}, folder=str(tmp_path))
    file.write_text(json.dumps({"version": 1, "jobs": [mine]}))
    environment = {**os.environ, "ROLLMUX_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-u", "-m", "rollmux", "run"]
    begun = subprocess.Popen([*command, str(file), "--out", str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
    assert begun.stdout is not None
    while "iteration 5 of" not in begun.stdout.readline():
        assert begun.poll() is None
    begun.kill()
    begun.communicate()
    again = subprocess.run([*command, "--resume", str(folder)], env=environment, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, ""), again.stdout
    record = read_run(folder)
    assert record.relaunched and audit(read_facts(folder / JOURNAL)).problems == ()
    check_versions(record, "a", 1, 30)
    after = [part for part in _phases(record, "a", "rollout") if part.start_s >= record.relaunched[0].at_s]
    begins = next(fact.iteration for fact in record.restarted)
    kept = sum(fact.sampled or 0 for _, fact in record.reports_of(Continued))
    assert [part.iteration for part in after] == [*range(begins + kept, 30)]
