"""When checkpoints are written, that nothing waits for the disk but what has to, and that a full one is waited for."""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoints import MANIFEST, find_damage, numbers, place_of
from runtime.jobs.file import parse_jobs
from runtime.jobside.checkpointing import RANDOM, SHARE, CheckpointWriter, usual_interval
from runtime.jobside.messages import Checkpoint


@given(write_s=st.floats(0, 1e5), iteration_s=st.floats(1e-3, 1e5))
def test_usually_writing_takes_a_twentieth_of_an_iteration_at_most_and_no_iteration_more_is_risked(
    write_s: float, iteration_s: float
) -> None:
    interval = usual_interval(write_s, iteration_s)
    assert write_s / interval <= SHARE * iteration_s * (1 + 1e-9)
    assert interval == 1 or write_s / (interval - 1) > SHARE * iteration_s * (1 - 1e-9)


class Run:
    """What a job tells its run."""

    def __init__(self) -> None:
        self.where = ""
        self.checkpoints: list[Checkpoint] = []
        self.problems: list[str] = []
        self.recorded = Event()

    def leave_devices(self) -> None:
        """Nothing of it is on any."""

    def ask(self, method: str, argument: Any) -> bool:
        if method == "full":
            self.problems.append(argument)
            return True
        assert method == "checkpointed"
        self.checkpoints.append(argument)
        self.recorded.set()
        return True


class Job:
    """Its state is a number; a test lets it be written."""

    def __init__(self, beside: bool = True) -> None:
        self.number, self.beside = 0, beside
        self.writes = Event()
        self.full = 0  # how often there is no room

    def checkpoint(self, folder: Path) -> Callable[[], None] | None:
        number = self.number

        def write() -> None:
            if self.beside:
                self.writes.wait()
            if self.full:
                self.full -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            (folder / "number").write_text(f"{number}")

        if self.beside:
            return write
        write()
        return None


def writer_of(folder: Path, checkpoint: object, run: Run) -> CheckpointWriter:
    given = {"id": "a", "class": "a:B", "iterations": 99, "slo": 2, "checkpoint": checkpoint}
    spec = parse_jobs({"version": 1, "jobs": [given]}, "test", Path()).jobs[0]
    writer = CheckpointWriter(spec, run)  # type: ignore[arg-type]
    writer.begin(folder, 0)
    return writer


def iterate(writer: CheckpointWriter, job: Job, seconds: float = 100.0) -> None:
    """An iteration, and what comes before the next one."""
    job.number += 1
    writer.iterated(seconds)
    writer.write_if_due(job)


def test_the_job_goes_on_while_a_checkpoint_is_written_until_the_next_one_is_due(tmp_path: Path) -> None:
    run, job = Run(), Job()
    writer = writer_of(tmp_path, {"every": 3}, run)
    for _ in range(5):  # that of the third iteration is being written
        iterate(writer, job)
    assert not run.checkpoints and numbers(tmp_path) == []
    with ThreadPoolExecutor() as threads:
        sixth = threads.submit(iterate, writer, job)
        assert not run.recorded.wait(0.05) and not sixth.done()
        job.writes.set()
    writer.wait()
    assert [checkpoint.iterations for checkpoint in run.checkpoints] == [3, 6]
    assert [(place_of(tmp_path, k) / "number").read_text() for k in (3, 6)] == ["3", "6"]  # as they were then
    assert [find_damage(place_of(tmp_path, k)) for k in (3, 6)] == [None, None]


def test_whoever_has_to_leave_has_a_checkpoint_of_what_it_is(tmp_path: Path) -> None:
    run, job = Run(), Job()
    writer = writer_of(tmp_path, {"every": 2, "keep": 1}, run)
    job.writes.set()
    for _ in range(3):
        iterate(writer, job)
    writer.write_now(job)
    writer.write_now(job)  # there is nothing to do
    assert [checkpoint.iterations for checkpoint in run.checkpoints] == [2, 3] and numbers(tmp_path) == [3]
    assert json.loads((place_of(tmp_path, 3) / "checkpoint.json").read_text())["iterations"] == 3


@pytest.mark.parametrize("beside", [True, False])
def test_a_job_waits_for_room_on_the_disk_and_then_writes_what_it_is(tmp_path: Path, beside: bool) -> None:
    run, job = Run(), Job(beside)
    job.writes.set()
    job.full = 3
    writer = writer_of(tmp_path, {"every": 1}, run)
    iterate(writer, job)
    writer.wait()
    assert not run.checkpoints if beside else len(run.checkpoints) == 1
    iterate(writer, job)
    writer.wait()
    assert [checkpoint.iterations for checkpoint in run.checkpoints] == ([2] if beside else [1, 2])
    assert run.problems == ["[Errno 28] No space left on device"] * 3 and run.where == ""


def test_a_job_that_ends_waits_no_longer_than_it_says_for_a_checkpoint_that_may_never_be_whole(tmp_path: Path) -> None:
    run, job = Run(), Job()
    writer = writer_of(tmp_path, {"every": 1}, run)
    iterate(writer, job)
    thread = writer._thread  # it goes on, and has to end before the test does
    writer.wait(0.0)
    assert thread is not None and not run.checkpoints and numbers(tmp_path) == []
    job.writes.set()
    thread.join()
    assert [checkpoint.iterations for checkpoint in run.checkpoints] == [1]


def test_what_else_goes_wrong_beside_the_job_is_its_own_error_at_the_end_of_the_iteration(tmp_path: Path) -> None:
    class Fails(Job):
        def checkpoint(self, folder: Path) -> Callable[[], None]:
            return (folder / "none" / "state").touch

    run, job = Run(), Fails()
    writer = writer_of(tmp_path, {"every": 1}, run)
    iterate(writer, job)
    writer.wait()
    with pytest.raises(FileNotFoundError):
        iterate(writer, job)
    assert run.where == "checkpoint" and numbers(tmp_path) == []


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("name", [RANDOM, MANIFEST])
def test_a_job_that_writes_a_file_of_a_name_that_is_taken_is_told_at_its_first_checkpoint(
    tmp_path: Path, name: str, beside: bool
) -> None:
    class Takes(Job):
        def checkpoint(self, folder: Path) -> Callable[[], None] | None:
            write = functools.partial(write_text, folder / name)
            return write if self.beside else write()

    def write_text(path: Path) -> None:
        path.write_text("[1, 2]")

    run, job = Run(), Takes(beside)
    writer = writer_of(tmp_path, {"every": 1}, run)
    iterate(writer, job)
    writer.wait()
    with pytest.raises(RuntimeError, match=f"^its checkpoint has a file {name}; RollMux itself writes one of this name"):
        iterate(writer, job)
    assert numbers(tmp_path) == [] and not run.checkpoints


def test_the_usual_interval_follows_from_what_was_measured(tmp_path: Path) -> None:
    run, job = Run(), Job()
    writer = writer_of(tmp_path, {}, run)
    job.writes.set()
    writer.write_if_due(job)  # it has done nothing yet
    for _ in range(3):  # a write takes far less than a twentieth of 100 s
        iterate(writer, job)
        writer.wait()
    assert [checkpoint.iterations for checkpoint in run.checkpoints] == [1, 2, 3]
    longest = writer_of(tmp_path / "other", {}, run)
    for _ in range(9):  # and always more than one of a nanosecond
        iterate(longest, job, seconds=1e-9)
        longest.wait()
    assert [checkpoint.iterations for checkpoint in run.checkpoints[3:]] == [1]
