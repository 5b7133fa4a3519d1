"""What a user names is read only where it is a regular file: a pipe would wait for ever, a device never end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollmux_env.files import TEXT_BYTES
from tests.conftest import Command

COMMANDS = {
    "validate": ("validate", "{}"),
    "plan": ("plan", "{}"),
    "bench": ("bench", "{}"),
    "a learned policy": ("bench", "micro-temporal", "-p", "learned:{}"),
    "a learned dispatch policy": ("bench", "micro-temporal", "--dispatch", "learned:{}"),
    "explain": ("explain", "{}", "--job", "a"),
    "trace": ("trace", "{}", "--out", "pictures"),
    "a trace of arrivals": ("workload", "philly", "--set", "csv={}", "--out", "a.yaml"),
    "train": ("train", "{}"),
    "run": ("run", "{}"),
    "a cluster": ("serve", "service", "--cluster", "{}"),
    "submit": ("submit", "{}"),
    "profile": ("profile", "{}"),
}
FOLDERS = {
    "a journal": ("journal.sqlite", ("status", "compare", "run --resume", "journal replay", "journal audit", "serve")),
    "a service": ("service.json", ("status", "cancel a", "logs a --follow", "serve")),
}


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Paths of what is no file to read, by what is said of it."""
    monkeypatch.chdir(tmp_path)
    names = ("folder", "pipe.yaml", "zero.yaml", "zero.json", "large.yaml")
    folder, pipe, zero, other, large = (tmp_path / name for name in names)
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    pipe.symlink_to("pipe")
    zero.symlink_to("/dev/zero")
    other.symlink_to("/dev/zero")
    large.touch()
    os.truncate(large, 16 * TEXT_BYTES)  # it takes no place on the disk
    return {"folder": folder, "pipe": pipe, "device": zero, "a device": other, "larger than": large}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_regular_file_is_refused_by_every_command(command: Command, strange: dict[str, Path], name: str) -> None:
    for said, path in strange.items():
        if (name, said) == ("profile", "folder"):  # that of a model
            continue
        status, out, err = command(*(part.format(path) for part in COMMANDS[name]))
        assert (status, out, err.count("\n")) == (2, "", 1) and said in err and str(path) in err
    assert not Path("a.yaml").exists() and not Path("pictures").exists()


@pytest.mark.parametrize("name", FOLDERS)
def test_what_stands_in_a_folder_in_place_of_a_file_is_refused(command: Command, strange: dict[str, Path], name: str) -> None:
    file, commands = FOLDERS[name]
    for said, path in strange.items():
        home = path.with_name("run")
        home.mkdir(exist_ok=True)
        (home / file).unlink(missing_ok=True)
        (home / file).symlink_to(path)
        for line in commands:
            words = line.split()
            at = ["--at"] if words[0] in ("status", "cancel", "logs") else []
            status, out, err = command(*words, *at, str(home))
            assert (status, out, err.count("\n")) == (2, "", 1), (said, line)
            assert file in err
