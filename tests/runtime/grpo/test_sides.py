"""The built-in job's two sides, on a real engine and a real trainer, in this process."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest

from runtime.checkpoints import begin_checkpoint, find_damage, numbers
from runtime.grpo.asynchronous import AsynchronousGrpo
from runtime.grpo.job import Grpo
from runtime.jobs.spec import TaskJob
from runtime.machine import Node, Pool
from runtime.phases import runtime_hook, set_session
from tests.fixtures import FIXTURES
from tests.runtime.grpo.here import TWO_CORES, Here, always_resizes
from tests.runtime.grpo.small_disk import PAGE, small_disk
from tests.runtime.grpo.test_job import job
from tests.runtime.jobs.task_job import task_job

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    yield
    set_session(None)


def spec_of(**more: Any) -> TaskJob:
    given = job("a", seed=1, slo=2.0, iterations=6, **more)
    return task_job(given)


def iterate(made: Grpo, run: Here, numbers: range) -> list[dict[str, float]]:
    metrics = []
    for run.iteration in numbers:
        runtime_hook.renew()
        made.step()
        metrics.append(dict(runtime_hook.metrics))
    return metrics


def test_rollouts_go_on_beside_trainings_and_a_checkpoint_has_what_was_sampled(tmp_path: Path) -> None:
    """Training 2 waits until rollout 3 has begun, and rollout 4, in the end, for the checkpoint: nothing goes by luck."""
    run, begun = Here(), {number: Event() for number in range(6)}

    def begins(number: int, phase: str) -> None:
        if phase == "rollout":
            begun[number].set()
        if phase == "train" and number < 5:
            assert begun[number + 1].wait(PATIENCE_S)

    run.begins = begins
    set_session(run)
    made = AsynchronousGrpo(spec_of(staleness=1))
    metrics = iterate(made, run, range(3))
    made.pause()
    assert 1 <= made.sampled_ahead <= 2 and ("rollout" not in {phase for number, phase in run.phases if number > 4})
    ahead = made.sampled_ahead
    begin_checkpoint(tmp_path / "kept", 3, made.checkpoint)()
    made.close()

    again = Here()
    set_session(again)
    other = AsynchronousGrpo(spec_of(staleness=1))
    other.restore(tmp_path / "kept" / "000003")
    assert other.sampled_ahead == ahead
    other.load("rollout")
    metrics += iterate(other, again, range(3, 6))
    assert [number for number, phase in again.phases if phase == "rollout"] == [*range(3 + ahead, 6)]
    assert [number for number, phase in again.phases if phase == "train"] == [3, 4, 5]
    other.close()
    ages = [one["trained_version"] - one["sampled_version"] for one in metrics]
    assert [one["trained_version"] for one in metrics] == [*range(6)] and ages[0] == 0 and set(ages[1:]) == {1}
    assert all(0 <= one["reward"] <= 1 and one["logprob_gap"] < 1 for one in metrics)


def test_a_job_goes_on_from_the_checkpoint_of_an_earlier_version() -> None:
    """It trains on the samples that the checkpoint has as that version went on, and then on samples of its own."""
    kept, checkpoint = FIXTURES / "grpo-job", FIXTURES / "grpo-job" / "checkpoints" / "000002"
    given: dict[str, Any] = {"id": "a", "slo": 10, "seed": 2, "iterations": 4, "staleness": 1, "task": "long-tail"}
    algorithm = {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 16, "learning_rate": 2e-2}
    assert find_damage(checkpoint) is None
    set_session(run := Here())
    made = AsynchronousGrpo(task_job(given | {"model": {"name": str(kept / "model")}, "algorithm": algorithm}))
    made.restore(checkpoint)
    made.load("rollout")
    first, second = iterate(made, run, range(2, 4))
    made.close()
    expected: dict[str, float] = json.loads((kept / "iteration.json").read_text())
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert (second["trained_version"], second["sampled_version"]) == (3, 2) and second["tokens"] > 0


def test_a_job_trains_after_its_profile_as_it_would_have_without() -> None:
    trained = []
    for profiled in (False, True):
        set_session(run := Here())
        made = Grpo(spec_of())
        if profiled:
            run.worst_case = True
            runtime_hook.renew()
            made.profile()
            run.worst_case = False
        trained.append([{name: one[name] for name in one if not name.endswith("_s")} for one in iterate(made, run, range(2))])
        made.close()
    assert trained[0] == trained[1]
    assert {"reward", "loss", "grad_norm"} <= trained[0][1].keys()


def test_an_engine_takes_new_weights_in_the_middle_of_responses_where_it_may() -> None:
    run, sampling = Here(), Event()
    set_session(run)
    made = AsynchronousGrpo(spec_of(staleness=1, rollout={"engine": "torch", "interruptible": True}))
    versions: list[tuple[int, ...]] = []
    made.load("rollout")
    (worker,) = vars(made._engines)["_workers"]  # noqa: SLF001 (a thread, whose object is looked into)
    engine = worker.held._engine  # noqa: SLF001
    generate = engine.generate

    def slowly(*arguments: Any, **options: Any) -> Any:
        """The second rollout does not go on until the weights of the first training have landed."""

        def stop() -> bool:
            if run.iteration == 0 and runtime_hook.iteration == 0 and engine.version == 0 and len(versions) == 1:
                sampling.set()
                assert landed.wait(PATIENCE_S)
            return bool(options["stop"]())

        responses = generate(*arguments, **(options | {"stop": stop}))
        if all(one.finished for one in responses):
            versions.append(tuple(version for one in responses for version in one.versions))
        return responses

    landed = Event()
    engine.generate = slowly
    set_staged = worker.held.residency.set_staged

    def tell(weights: Any) -> None:
        set_staged(weights)
        landed.set()

    worker.held.residency.set_staged = tell

    def begins(number: int, phase: str) -> None:
        if (number, phase) == (0, "train"):
            assert sampling.wait(PATIENCE_S)

    run.begins = begins
    metrics = iterate(made, run, range(3))
    made.close()
    assert set(versions[0]) == {0} and set(versions[1]) == {0, 1}
    assert 0 < metrics[1]["staleness"] < 1 == metrics[1]["trained_version"] - metrics[1]["sampled_version"]


class Woken(Here):
    """A run that stops a rollout when as many responses have finished as it is to wake the job for."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.done = [10**9], dict[int, int]()

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return (TWO_CORES,) if pool == "rollout" else super().nodes(pool)

    def wake(self, responses: int | None) -> None:
        self.at[0] = 10**9 if responses is None else responses

    def progress(self, done: int, total: int, tokens: int) -> None:
        self.done[get_ident()] = done

    def stops(self) -> bool:
        return sum(self.done.values()) >= self.at[0]

    @contextlib.contextmanager
    def hold(self, job: Any, phase: str) -> Iterator[None]:
        if phase == "rollout":
            self.done.clear()
        with super().hold(job, phase):
            yield


def test_engines_change_their_size_within_rollouts_that_go_on_beside_trainings(tmp_path: Path) -> None:
    run = Woken()
    set_session(run)
    rollout = {"engine": "torch", "interruptible": True, "policy": always_resizes(tmp_path / "policy"), "sizes": [2]}
    made = AsynchronousGrpo(spec_of(staleness=1, rollout=rollout))
    metrics = iterate(made, run, range(4))
    made.close()
    assert [one["trained_version"] for one in metrics] == [*range(4)]  # S1 is asserted before each training
    assert sum(one["resizes"] for one in metrics) > 0 and {one["engine_size"] for one in metrics} <= {1.0, 2.0}
    assert max(one["staleness"] for one in metrics) <= 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with small_disk(tmp_path / "disk") as there:
        yield there


@pytest.mark.long
def test_samples_that_find_no_room_on_the_disk_are_there_when_there_is_some(disk: Path) -> None:
    """A page is left: enough for the first file of a checkpoint, not for its samples."""
    run, ballast = Here(), disk / "ballast"
    set_session(run)
    made = AsynchronousGrpo(spec_of(staleness=1))
    iterate(made, run, range(2))
    made.pause()
    begin_checkpoint(disk / "kept", 2, made.checkpoint)()
    with ballast.open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            while file.write(bytes(PAGE)):
                pass
        file.truncate(file.tell() // PAGE * PAGE - PAGE)
    iterate(made, run, range(2, 3))
    made.pause()
    ahead = made.sampled_ahead
    with pytest.raises(OSError) as raised:
        begin_checkpoint(disk / "kept", 3, made.checkpoint)
    assert raised.value.errno == errno.ENOSPC and raised.traceback[-2].name == "write_rollouts"
    assert ahead >= 1 and made.sampled_ahead == ahead and numbers(disk / "kept") == [2]
    ballast.unlink()
    begin_checkpoint(disk / "kept", 3, made.checkpoint)()
    iterate(made, run, range(3, 6))
    made.close()
    other = AsynchronousGrpo(spec_of(staleness=1))
    other.restore(disk / "kept" / "000003")
    assert other.sampled_ahead == ahead
