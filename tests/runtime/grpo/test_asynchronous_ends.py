"""Built-in jobs with a staleness when a run is stopped, a disk is full, a budget is spent or tails are migrated: samples stay."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints import numbers, place_of
from runtime.grpo.state import read_rollouts
from runtime.journal.audit import check_run
from runtime.journal.record import RunRecord
from runtime.machine import Node
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.small_disk import PAGE, small_disk
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Where the checkpoints of a run in `x` are: on a small disk of their own."""
    with small_disk(tmp_path / "x" / "checkpoints") as there:
        yield there


def test_a_job_whose_samples_find_no_room_on_the_disk_waits_and_loses_none(run: Running, tmp_path: Path, disk: Path) -> None:
    """When three checkpoints are whole, a page is left: enough for the first file of the next one, not for its samples."""
    go, ballast = tmp_path / "go", disk / "ballast"
    jobs = [stale("a", task=waits(3, go), checkpoint={"every": 1, "keep": 50})]

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(PAGE)) == PAGE:
                    pass
            except OSError:
                file.truncate(file.tell() - PAGE)

    def hear(line: str) -> None:
        if "a: iteration 3 of" in line:
            while 3 not in numbers(disk / "a"):
                time.sleep(0.01)
            fill()
            go.touch()
        if "No space left on device" in line:
            assert numbers(disk / "a") == [1, 2, 3]
            ballast.unlink()

    outcome, record, lines = run(jobs, folder=tmp_path / "x", hear=hear)
    assert outcome == "done" and not record.failed and not record.restarted and not record.repeated, lines
    (absent,) = record.checkpoint_delays
    assert absent.job_id == "a" and "No space left on device" in absent.why
    assert [fact.iterations for fact in record.checkpointed] == [*range(1, 9)]
    check_versions(record, "a", 1, 8)
    assert sampled(record, "a") == [*range(8)]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_job_whose_budget_is_spent_ends_with_what_it_has_sampled(run: Running, tmp_path: Path, keeps: bool) -> None:
    checkpoint = {"every": 1} if keeps else "none"
    jobs = [stale("a", seed=1, budget={"hours": 1e-9}, checkpoint=checkpoint), stale("b", seed=2, iterations=4)]
    outcome, record, _ = run(jobs, policy="rollmux,prune=false", folder=tmp_path / "x")
    assert outcome == "done" and not record.failed and record.over_budget == {"a"}
    check_versions(record, "a", 1, 1)
    check_versions(record, "b", 1, 4)
    ended = sampled(record, "a")
    assert ended == [*range(len(ended))] and 1 <= len(ended) <= 3
    if keeps:
        version, rollouts = read_rollouts(place_of(tmp_path / "x" / "checkpoints" / "a", 1))
        assert version == 1 and [one.number for one in rollouts] == ended[1:]


@pytest.mark.parametrize("interruptible", [False, True])
def test_a_migrated_tail_of_a_job_that_trains_beside_it(
    run: Running, nodes: tuple[Node, ...], tmp_path: Path, interruptible: bool
) -> None:
    """A rollout of `a` does not begin to sample before `b` asks for its own, which it does when that of `a` has begun."""
    first = next(node for node in nodes if node.pool == "rollout")
    on = (*nodes, replace(first, name="rollout-1"))  # on the same core: what is asked here is not speed
    algorithm = {**SMALL["algorithm"], "prompts_per_iteration": 6, "max_tokens": 240}
    task = {"name": "tests.runtime.toy_tasks:WaitsForOther", "options": {"folder": str(tmp_path), "prompts": 6}}
    rollout = {"engine": "torch", "nodes": 2, "interruptible": interruptible}
    does = {f"step {k}": f"wait began-{k}" for k in range(1, 8)} | {f"parts {k}": f"touch asks-{k}" for k in range(8)}
    options = {"rollout_s": 0.05, "folder": str(tmp_path), "does": does}
    other = {"id": "b", "class": "toy_jobs:Tailed", "options": options}
    jobs = [stale("a", task=task, rollout=rollout, algorithm=algorithm), {**other, "rollout": {"nodes": 2}, "iterations": 8}]
    outcome, record, _ = run(
        [{"slo": 1000.0, **one} for one in jobs],
        policy="rollmux,prune=false",
        on=on,
        dispatch="fifo,migrate=0.5",
        folder=tmp_path / "x",
    )
    assert outcome == "done" and not record.failed
    check_run(record)
    check_versions(record, "a", 1, 8)
    assert sampled(record, "a") == [*range(8)]
    assert any(span.tail for part in record.phases if part.job_id == "a" for span in part.spans)
