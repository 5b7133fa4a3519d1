"""`@phase` and the hook outside of a run: the class works as it stands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import rollmux
from runtime.phases import set_session


class Job:
    def __init__(self) -> None:
        self.calls: list[str] = []

    @rollmux.phase("rollout")
    def rollout(self, count: int) -> int:
        """Sample."""
        rollmux.runtime_hook.progress(1, count)
        self.calls.append("rollout")
        return count


def test_outside_of_a_run_phases_are_plain_methods() -> None:
    job = Job()
    assert job.rollout(3) == 3 and job.calls == ["rollout"]
    assert Job.rollout.__doc__ == "Sample." and Job.rollout.__name__ == "rollout"
    assert Job.rollout.rollmux_phase == "rollout"  # type: ignore[attr-defined]
    hook = rollmux.runtime_hook
    assert (hook.worst_case, hook.iteration, hook.nodes("rollout")) == (False, 0, ())


class Longer(Job):
    @rollmux.phase("rollout")
    def rollout(self, count: int) -> int:
        self.calls.append("before")
        return super().rollout(count) + 1


class Counting:
    """A session that counts permits."""

    def __init__(self) -> None:
        self.permits = 0

    @contextlib.contextmanager
    def hold(self, job: object, phase: str) -> Iterator[None]:
        self.permits += 1
        yield

    def progress(self, done: int, total: int, tokens: int) -> None:
        pass


def test_a_phase_that_calls_that_of_its_base_class_is_one_phase() -> None:
    session, job = Counting(), Longer()
    set_session(session)  # type: ignore[arg-type]
    try:
        assert job.rollout(3) == 4 and session.permits == 1
        assert job.rollout(3) == 4 and session.permits == 2
    finally:
        set_session(None)
    assert job.calls == ["before", "rollout"] * 2


def test_reports_are_numbers() -> None:
    rollmux.runtime_hook.report(reward=1)
    assert rollmux.runtime_hook.metrics["reward"] == 1.0
    rollmux.runtime_hook.metrics.clear()
    with pytest.raises(ValueError, match="could not convert"):
        rollmux.runtime_hook.report(reward="high")  # type: ignore[arg-type]


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'rollout', 'train' or 'sync'"):
        rollmux.phase("trains")  # type: ignore[arg-type]
    assert rollmux.phase("training")(len).rollmux_phase == "train"  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="workers can be started in a run alone"):
        rollmux.runtime_hook.wait([])
