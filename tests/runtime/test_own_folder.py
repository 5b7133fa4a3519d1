"""What RollMux ends and removes is its own, whatever a file says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.machines.own_ray import end_processes, started_processes
from runtime.own_folder import PREFIX, SPARE, OwnFolder, left_folders, make_own_folder, spare_folder
from runtime.run.ray_session import RAY, end_all_left, end_left
from runtime.service.address import SERVICE, RayAddress, ServiceAddress, find
from runtime.service.head import find_running, stop_head
from tests.conftest import Command

SLEEP = "import time; print(flush=True); time.sleep(600)"


@pytest.fixture
def own() -> Iterator[OwnFolder]:
    """A folder of ours."""
    made = make_own_folder()
    yield made
    shutil.rmtree(made.path, ignore_errors=True)


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a file open below a folder of somebody else's, `theirs`."""
    (tmp_path / "theirs").mkdir()
    with (tmp_path / "theirs" / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    yield process
    process.kill()
    process.communicate()


def test_what_was_made_is_ours_and_is_removed(own: OwnFolder) -> None:
    (Path(own.path) / "file").touch()
    assert own.problem() is None and own.leftover() is None
    own.remove()
    assert not Path(own.path).exists() and own.problem() == "there is no such folder" and own.leftover() is None


def test_what_is_named_like_ours_is_not_ours(own: OwnFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / f"{PREFIX}x"
    elsewhere.mkdir()
    noted = elsewhere.stat()
    link = Path(f"{own.path}-link")
    link.symlink_to(elsewhere)
    try:
        doubts = {
            OwnFolder(str(elsewhere), noted.st_dev, noted.st_ino): "it is not in /tmp",
            replace(own, path=""): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path="/"): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path="/tmp"): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path=f"/tmp/../{elsewhere}"): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path=f"{own.path}/"): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path=os.path.relpath(own.path)): "its name is none that RollMux gives, /tmp/rollmux-ray-...",
            replace(own, path=str(link)): "it is no folder",
            replace(own, inode=own.inode + 1): "it is another folder than the one that was made",
            replace(own, device=own.device + 1): "it is another folder than the one that was made",
            OwnFolder(own.path): "an older RollMux did not note which folder it made",
            OwnFolder(f"/tmp/{PREFIX}\0"): "there is no such folder",
        }
        for folder, doubt in doubts.items():
            assert folder.problem() == doubt, folder
            folder.remove()
            assert not started_processes(folder)
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(own.path).st_uid + 1)
        assert own.problem() == "it is another user's"
        own.remove()
        monkeypatch.undo()
        assert elsewhere.is_dir() and link.is_symlink() and own.problem() is None
    finally:
        link.unlink()


def test_a_folder_that_has_taken_the_place_of_ours_is_left_alone(own: OwnFolder) -> None:
    moved = Path(f"{own.path}-moved")
    Path(own.path).rename(moved)
    Path(own.path).mkdir()
    try:
        own.remove()
        assert Path(own.path).is_dir()
        assert "another folder than the one that was made" in (own.leftover() or "")
    finally:
        moved.rmdir()


@pytest.mark.parametrize("ray", ["{theirs}", "", ".", "/", "{link}"])
def test_a_service_file_is_not_obeyed(tmp_path: Path, bystander: subprocess.Popen[bytes], own: OwnFolder, ray: str) -> None:
    theirs, service = tmp_path / "theirs", tmp_path / "service"
    said: list[str] = []
    (tmp_path / "secret").write_text("a token of somebody else's")
    link = Path(f"{own.path}-link")
    link.symlink_to(theirs)
    service.mkdir()
    noted = theirs.stat()
    home = ray.format(theirs=theirs, link=link)
    where = RayAddress("127.0.0.1:1", "x", token=str(tmp_path / "secret"), ray=home, device=noted.st_dev, inode=noted.st_ino)
    (service / SERVICE).write_text(json.dumps(asdict(ServiceAddress("", "", where))))
    try:
        assert find_running(service, said.append) is None
        assert bystander.poll() is None and (theirs / "log").exists() and (tmp_path / "secret").exists()
        assert len(said) == (home not in ("", ".")) and not any("\n" in line for line in said)
        assert find(service) is None  # but the file itself, which is the service's
    finally:
        link.unlink()


def test_what_an_older_service_noted_is_left_alone_and_said(
    tmp_path: Path, bystander: subprocess.Popen[bytes], own: OwnFolder
) -> None:
    said: list[str] = []
    (tmp_path / "token").write_text("of this service")
    (tmp_path / SERVICE).write_text(json.dumps({"address": "127.0.0.1:1", "actor": "x", "token": "t", "ray": own.path}))
    assert find_running(tmp_path, said.append) is None
    (line,) = said
    assert line.startswith(f"{own.path}: is left as it is, for an older RollMux did not note") and "remove it by hand" in line
    assert Path(own.path).is_dir() and not (tmp_path / "token").exists()


@pytest.mark.parametrize("note", ["{theirs}", "", '{{"path": "{theirs}", "device": {device}, "inode": {inode}}}', "{own}", "[1]"])
def test_the_note_of_a_run_is_not_obeyed(tmp_path: Path, bystander: subprocess.Popen[bytes], own: OwnFolder, note: str) -> None:
    theirs = tmp_path / "theirs"
    said: list[str] = []
    noted = theirs.stat()
    file = tmp_path / "ray"
    file.write_text(note.format(theirs=theirs, device=noted.st_dev, inode=noted.st_ino, own=own.path) + "\n")
    end_left(file, said.append)
    assert bystander.poll() is None and (theirs / "log").exists() and Path(own.path).is_dir() and not file.exists()
    assert len(said) == (note not in ("", "[1]"))


def test_what_is_ours_is_ended_and_removed(tmp_path: Path, own: OwnFolder) -> None:
    said: list[str] = []
    with (Path(own.path) / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        (tmp_path / "ray").write_text(json.dumps(asdict(own)))
        end_left(tmp_path / "ray", said.append)
        assert process.wait() == -9 and not Path(own.path).exists() and not said
    finally:
        process.kill()
        process.communicate()


def test_a_head_that_is_stopped_takes_its_token_along_and_no_other(tmp_path: Path, own: OwnFolder) -> None:
    said: list[str] = []
    (tmp_path / "token").touch()
    stop_head(RayAddress("127.0.0.1:1", "x", "n", str(tmp_path / "token"), own.path, own.device, own.inode), said.append)
    end_processes(own, grace_s=0.0)
    assert not said and not (tmp_path / "token").exists() and not Path(own.path).exists()


HOLD = """
import sys, time
from runtime.own_folder import spare_folder
with spare_folder() as path:
    (path / "file").touch()
    print(path, flush=True)
    sys.stdin.read()
"""


def test_a_spare_folder_is_removed_by_its_process_or_by_whoever_comes_after_its_death() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        paths = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in paths)
        assert not {own.path for own in left_folders()} & {str(path) for path in paths}  # their processes live
        processes[0].kill()
        processes[0].wait()
        assert [own.path for own in left_folders() if own.path in {str(path) for path in paths}] == [str(paths[0])]
        processes[1].communicate()
        assert paths[0].is_dir() and not paths[1].exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        shutil.rmtree(paths[0])


def test_a_folder_that_only_looks_like_a_spare_one_is_left_alone(tmp_path: Path, own: OwnFolder) -> None:
    """Without a note, with that of another folder, with a pipe in its place, behind a link."""
    with spare_folder() as path:
        note = (path / "folder.json").read_bytes()
    names = [Path(tempfile.gettempdir()) / f"{SPARE}{kind}-{os.getpid()}" for kind in ("plain", "copy", "pipe", "link")]
    plain, copy, pipe, link = names
    try:
        for folder in (plain, copy, pipe):
            folder.mkdir()
        (copy / "folder.json").write_bytes(note)
        os.mkfifo(pipe / "folder.json")
        link.symlink_to(tmp_path)
        (tmp_path / "folder.json").write_bytes(note)
        assert not {own.path for own in left_folders()} & {str(name) for name in names}
    finally:
        link.unlink()
        for folder in (plain, copy, pipe):
            shutil.rmtree(folder)


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_ends_what_runs_that_were_killed_have_left(
    tmp_path: Path, own: OwnFolder, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Of the run that was to keep nothing nobody knows but its folder; the folder of the other is its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(own_spare(tmp_path).path) if not kept else tmp_path / "run"
    folder.mkdir(exist_ok=True)
    (folder / RAY).write_text(json.dumps(asdict(own)))
    (tmp_path / "run").mkdir(exist_ok=True)
    end_all_left(tmp_path / "run", pytest.fail)
    assert not Path(own.path).exists() and [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run" / RAY).exists()


def own_spare(parent: Path) -> OwnFolder:
    """A spare folder that a killed process has left."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    process.kill()
    process.communicate()
    return OwnFolder(path)


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_run_that_was_killed_before_its_first_record_leaves_nothing_behind_the_next(
    tmp_path: Path, own: OwnFolder, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    def no_ray(*_: object) -> None:
        raise InputError("no Ray here")

    monkeypatch.setattr("runtime.commands.running.ray_session", no_ray)
    (tmp_path / RAY).write_text(json.dumps(asdict(own)))
    status, _, err = command("run", "examples/own_job.yaml", "--out", str(tmp_path), *arguments)
    assert (status, err) == (2, "rollmux: no Ray here\n")
    assert not Path(own.path).exists() and not (tmp_path / RAY).exists()
