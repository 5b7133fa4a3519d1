"""Samples of rollouts are appended and read back, bounded, and cost no job anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.phases import RuntimeHook
from runtime.samples import LARGEST, MOST, SAMPLES, SampleGroup, make_group, read_samples, write_samples
from tests.conftest import Command


def group(text: str = "x") -> SampleGroup:
    return make_group("prompt", [text, "y"], [1, 0.5])


def file_of(folder: Path) -> Path:
    return folder / SAMPLES / "a.jsonl"


def test_what_is_written_is_read_and_what_was_done_again_counts_once(tmp_path: Path) -> None:
    for iteration in (0, 1, 2):
        write_samples(file_of(tmp_path), iteration, [group("before")] * 2)
    write_samples(file_of(tmp_path), 1, [group("after")])
    expected = {0: (group("before"),) * 2, 1: (group("after"),)}
    assert read_samples(tmp_path, "a") == expected
    with file_of(tmp_path).open("a") as file:
        file.write('{"iteration": 3, "gro')  # a kill
    assert read_samples(tmp_path, "a") == expected
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600


def test_files_and_iterations_are_bounded(tmp_path: Path) -> None:
    write_samples(file_of(tmp_path), 0, [group()] * 20)
    assert len(read_samples(tmp_path, "a")[0]) == MOST
    for iteration in range(1, 800):
        write_samples(file_of(tmp_path), iteration, [group("long " * 4000)])
    assert file_of(tmp_path).stat().st_size <= LARGEST
    kept = [*read_samples(tmp_path, "a")]
    assert kept == [*range(kept[0], 800)] and len(kept) > 100
    assert len(make_group("p" * 10**6, [], []).prompt) == 20_000


def test_a_disk_without_room_costs_no_job_anything(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_text("a file where the folder should be")
    write_samples(file_of(tmp_path), 0, [group()])


def test_a_job_shows_what_it_likes() -> None:
    hook = RuntimeHook()
    hook.sample("p", ["one", "two"], [1, 0])
    assert hook.reported.samples == [SampleGroup("p", ("one", "two"), (1.0, 0.0))]
    with pytest.raises(ValueError, match="1 responses and 2 rewards: must be equally many"):
        hook.sample("p", ["one"], [1, 0])
    with pytest.raises(TypeError, match="must be text"):
        hook.sample("p", [1], [1])  # type: ignore[list-item]


def test_the_command_prints_an_iteration(command: Command, tmp_path: Path) -> None:
    for iteration in (0, 1):
        write_samples(file_of(tmp_path), iteration, [make_group(f"prompt {iteration}", ["x", "y"], [1, 0.5])])
    expected = "iteration 2\n\nprompt: prompt 1\n         1 | x\n       0.5 | y\n"
    assert command("samples", "a", "--at", str(tmp_path)) == (0, expected, "")
    assert command("samples", "a", "--iteration", "1", "--at", str(tmp_path))[1].startswith("iteration 1\n\nprompt: prompt 0")
    status, _, err = command("samples", "a", "--iteration", "9", "--at", str(tmp_path))
    assert (status, err) == (2, "rollmux: --iteration 9: there are no samples of it; there are some of 1 to 2\n")
    assert "there are no samples of it" in command("samples", "b", "--at", str(tmp_path))[2]


def test_no_job_reads_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(InputError, match="no samples"):
        read_samples(tmp_path, "../a")
