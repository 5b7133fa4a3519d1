"""Figures of iterations reach the loggers of a user, and a logger that fails costs no job anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rollmux_env.errors import InputError
from rollmux_env.report.loggers import find_logger
from runtime.journal.facts import IterationSlice
from runtime.run import ray_session
from runtime.run.loggers import LOGGERS, IterationPoints, JobLoggers


class Kept:
    """A logger that keeps what it is given, until its third step."""

    steps: ClassVar[list[tuple[str, int, dict[str, Any]]]] = []

    def __init__(self, folder: Path) -> None:
        self.name = folder.name

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int) -> None:
        if step == 2:
            raise OSError("no network")
        assert key_values.keys() == key_excluded.keys()
        self.steps.append((self.name, step, key_values))

    def close(self) -> None:
        raise OSError("gone")


class Closing:
    """A logger that cannot be made for job b."""

    def __init__(self, folder: Path) -> None:
        if folder.name == "b":
            raise OSError("no network")
        self.folder = folder

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int) -> None:
        pass

    def close(self) -> None:
        (self.folder / "closed").touch()


def number(folder: Path) -> int:
    return 3


def test_each_iteration_is_written_once_and_a_failed_logger_gets_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kept, "steps", [])
    points, said = IterationPoints(), list[str]()
    loggers = JobLoggers(find_logger(f"{__name__}:Kept"), tmp_path, ["a", "b"], said.append)
    seen = 0
    for k in range(4):
        points.on_entries((IterationSlice("a", k, 2.0 * k, 2.0 * k + 1, {"reward": 0.5}),))
        if k != 1:
            seen, new = points.after(seen)
            loggers.write(new)
    assert points.after(seen) == (4, [])
    assert Kept.steps == [("a", k, {"job/reward": 0.5, "seconds/iteration": 1.0}) for k in (0, 1)]
    loggers.close()
    prefix = f"--logger {__name__}:Kept raised OSError: "
    assert [line.partition(" in ")[0] for line in said] == [f"a: {prefix}no network", f"b: {prefix}gone"]
    assert said[0].endswith("; it gets no more figures")


def test_what_is_no_logger_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="returned 3, which has no `write` and `close`"):
        JobLoggers(find_logger(f"{__name__}:number"), tmp_path, ["a"], print)


def test_loggers_are_closed_if_one_cannot_be_made_or_the_coordinator_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = find_logger(f"{__name__}:Closing")
    with pytest.raises(InputError, match="raised OSError: no network"):
        JobLoggers(make, tmp_path, ["a", "b"], print)
    assert (tmp_path / LOGGERS / "a" / "closed").exists()

    def no_options() -> dict[str, Any]:
        raise OSError("no Ray")

    monkeypatch.setattr(ray_session, "coordinator_options", no_options)
    plan: Any = SimpleNamespace(folder=str(tmp_path), specs=[SimpleNamespace(id="c")])
    with pytest.raises(OSError, match="no Ray"):
        ray_session.execute(plan, print, make)
    assert (tmp_path / LOGGERS / "c" / "closed").exists()
