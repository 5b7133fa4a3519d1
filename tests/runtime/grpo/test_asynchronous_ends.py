"""Built-in jobs with a staleness whose run is stopped: samples stay."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints import place_of
from runtime.grpo.sample_files import read_rollouts
from runtime.record import RunRecord
from tests.runtime.execution.conftest import Running, nodes, run
from tests.runtime.grpo.test_asynchronous import check_versions
from tests.runtime.grpo.test_job import SMALL, job

__all__ = ["nodes", "run"]

pytestmark = pytest.mark.long


def stale(job_id: str, **more: Any) -> dict[str, Any]:
    return job(job_id, **{"staleness": 1, "iterations": 8, "checkpoint": {"every": 1}} | more)


def waits(rollout: int, file: Path) -> dict[str, Any]:
    """The task of a job whose rollout of that number does not go on before there is a file."""
    position = rollout * SMALL["algorithm"]["prompts_per_iteration"]
    return {"name": "tests.runtime.toy_tasks:Waits", "options": {"position": position, "file": str(file)}}


def sampled(record: RunRecord, job_id: str) -> list[int]:
    """Numbers of a job's rollouts, in their order."""
    rollouts = [part for part in record.phases if part.job_id == job_id and part.phase == "rollout" and not part.profile]
    assert all(part.ok for part in rollouts)
    return [part.iteration for part in rollouts]


def test_a_run_that_is_stopped_goes_on_and_samples_nothing_twice(run: Running, tmp_path: Path) -> None:
    """The only checkpoint is the one that the stop asks for; a rollout is under way then, of `a`, and `b` waits for it."""
    go = tmp_path / "go"
    never = {"every": 100}
    interrupted = {"engine": "torch", "interruptible": True}
    jobs = [
        stale("a", seed=1, task=waits(5, go), checkpoint=never),
        stale("b", seed=2, staleness=2, rollout=interrupted, checkpoint=never),
    ]

    def hear(line: str) -> None:
        if "a: iteration 5 of" in line:
            signal.raise_signal(signal.SIGINT)
        if "stopping at the next phase boundary" in line:
            go.touch()

    outcome, before, _ = run(jobs, policy="rollmux,prune=false", folder=tmp_path / "x", hear=hear)
    assert outcome == "stopped" and sampled(before, "a") == [*range(6)]
    assert [fact.iterations for fact in before.checkpointed if fact.job_id == "a"] == [5]
    version, rollouts = read_rollouts(place_of(tmp_path / "x" / "checkpoints" / "a", 5))
    assert version == 5 and [one.number for one in rollouts] == [5]
    outcome, record, _ = run(jobs, policy="rollmux,prune=false", folder=tmp_path / "x", resume=True)
    assert outcome == "done" and not record.failed and not record.repeated
    for name, staleness in (("a", 1), ("b", 2)):
        check_versions(record, name, staleness, 8)
        assert sampled(record, name) == [*range(8)]
