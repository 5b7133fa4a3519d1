"""Reward workers: the same samples and rewards as beside the engines, which do not wait for them, whatever happens to a worker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from policies.rollout.rounds import Rounds
from runtime.checkpoints import MANIFEST
from runtime.grpo.job import Grpo
from runtime.grpo.messages import ShareSamples
from runtime.grpo.reward_process import RewardProcess
from runtime.grpo.rewards import Rewards
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.shares import EngineShare
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import TaskExample
from runtime.journal.audit import check_run
from runtime.machine import Node
from runtime.phases import runtime_hook, set_session
from tests.runtime.coordinator.conftest import Running, nodes, run
from tests.runtime.grpo.here import Here, Worker
from tests.runtime.grpo.test_job import job
from tests.runtime.jobs.task_job import task_job

__all__ = ["nodes", "run"]

ALGORITHM = {"prompts_per_iteration": 2, "group_size": 2, "max_tokens": 8, "minibatches": 1}
PATIENCE_S = 120.0  # for what is bound to happen


def slow(folder: Path, rewards: dict[str, Any], **options: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    task = {"name": "tests.runtime.toy_tasks:Slow", "options": {"folder": str(folder), **options}}
    return job("a", task=task, algorithm=ALGORITHM, rewards=rewards)


def spec_of(given: dict[str, Any]) -> TaskJob:
    return task_job(given)


def sampled(spec: TaskJob, engines: int, reward_workers: list[Worker]) -> list[ShareSamples]:
    """A round on so many engines."""
    node = Node("rollout-0", "rollout", "m", (0,), (), 4.0, "1 core")
    parts: list[ShareSamples] = []
    for place, share in enumerate(Rounds(2, 2, 1.0).next().shares(engines)):
        worker = RolloutWorker(spec, place, engines, node, reward_workers)
        worker.open(None)
        worker.begin(0, False, 4, (EngineShare(place, share),), {})
        assert worker.sample() == ()
        worker.results()
        parts += worker.take()
        worker.close()
    return parts


def test_engines_that_share_reward_workers_bring_what_they_bring_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    spec = spec_of(slow(tmp_path, {"workers": 2}))
    set_session(Here())
    workers = [Worker(RewardProcess(spec)) for _ in range(2)]
    try:
        assert sampled(spec, 2, workers) == sampled(spec_of(slow(tmp_path, {})), 2, [])
        assert (tmp_path / "calls").stat().st_size == 8
    finally:
        for worker in workers:
            worker.close()
        set_session(None)


class _Held:
    """A reward worker that says which response it has, and ends when it is told to."""

    def __init__(self) -> None:
        self.has, self.goes_on = list[str](), Event()
        self.begun = Event()

    def score(self, example: TaskExample, response: str, limit_s: float | None) -> tuple[float, float]:
        self.has.append(response)
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S)
        return float(response), 0.0


def test_a_reward_begins_when_a_worker_is_free_and_behind_no_slow_one(tmp_path: Path) -> None:
    set_session(Here())
    held = [_Held(), _Held()]
    workers = [Worker(one) for one in held]
    rewards = Rewards(spec_of(slow(tmp_path, {"workers": 2})), workers)
    try:
        found = [rewards.submit(TaskExample("p"), lambda k=k: str(k)) for k in range(6)]  # type: ignore[misc]
        assert all(one.begun.wait(PATIENCE_S) for one in held)
        assert sorted(response for one in held for response in one.has) == ["0", "1"]
        free, stuck = held
        free.goes_on.set()
        assert [one.result(PATIENCE_S) for one in found[2:]] == [2.0, 3.0, 4.0, 5.0]
        assert len(free.has) == 5 and len(stuck.has) == 1 and sum(one.done() for one in found) == 5
        stuck.goes_on.set()
        assert [one.result(PATIENCE_S) for one in found] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    finally:
        rewards.close()
        for worker in workers:
            worker.close()
        set_session(None)


class _Gives(Here):
    """Makes a file when a phase has given its nodes back."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    @contextlib.contextmanager
    def hold(self, job: Any, phase: str) -> Iterator[None]:
        with super().hold(job, phase):
            yield
        self.file.touch()


def test_a_rollout_gives_its_nodes_back_before_its_first_reward_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    set_session(_Gives(tmp_path / "go"))
    made = Grpo(spec_of(slow(tmp_path, {"workers": 1, "timeout": PATIENCE_S}, after=0)))
    runtime_hook.renew()
    try:
        made._roll_out()  # noqa: SLF001 (no training is needed)
        assert runtime_hook.metrics["stopped_rewards"] == 0 and runtime_hook.metrics["reward_wait_s"] > 0
        assert (tmp_path / "calls").stat().st_size == 4
    finally:
        made.close()
        set_session(None)


@pytest.mark.long
def test_another_job_samples_while_a_rollout_waits_for_its_rewards(run: Running, tmp_path: Path) -> None:
    """There is one rollout node. The rewards of our first rollout wait for what the other's second one makes, and that for them."""
    ours = slow(tmp_path / "ours", {"workers": 1, "timeout": PATIENCE_S}, after=4) | {"iterations": 2, "slo": 1e6}
    does = {"folder": str(tmp_path / "ours"), "does": {"sync 0": "wait waits", "rollout 1": "touch go"}}
    other = {"id": "b", "class": "toy_jobs:Sleeper", "options": does, "iterations": 2, "slo": 1e6}
    outcome, record, _ = run([ours, other], dispatch="fifo")  # a round robin lets nobody in between the rollout and the training
    assert outcome == "done" and not record.failed
    check_run(record)
    assert all(done.metrics["stopped_rewards"] == 0 for done in record.iterations if done.job_id == "a")
    slices = {(part.job_id, part.phase, part.iteration): part for part in record.phases if not part.profile}
    assert slices["a", "rollout", 0].end_s <= slices["b", "rollout", 1].start_s < slices["a", "training", 0].start_s


@pytest.mark.long
def test_a_job_whose_reward_worker_is_killed_brings_what_it_brings_undisturbed(run: Running, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("beside", "workers")}
    rewards = {"beside": {}, "workers": {"workers": 2}}
    kill = {"beside": -1, "workers": 9}  # in the second iteration; four responses were the profile's
    found = []
    for name, folder in folders.items():
        outcome, record, _ = run([slow(tmp_path / f"{name}_calls", rewards[name], kill_after=kill[name])], folder=folder)
        assert outcome == "done" and not record.failed and len(record.restarted) == (name == "workers")
        check_run(record)
        metrics = [{key: value for key, value in done.metrics.items() if key != "reward_wait_s"} for done in record.iterations]
        last = folder / "checkpoints" / "a" / "000004" / MANIFEST
        found.append((metrics, json.loads(last.read_text())["files"]["rank-0.safetensors"]))
    assert len(found[0][0]) == 4 and found[0] == found[1]
