"""What RollMux ends and removes is its own, whatever a file says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runtime.execution.own_ray import end_processes, started_processes
from runtime.execution.ray_session import end_left
from runtime.own_folder import PREFIX, OwnFolder, make_own_folder
from runtime.service.address import SERVICE, ServiceAddress, find
from runtime.service.head import find_running, stop_head

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
    assert own.doubt() is None and own.leftover() is None
    own.remove()
    assert not Path(own.path).exists() and own.doubt() == "there is no such folder" and own.leftover() is None


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
            assert folder.doubt() == doubt, folder
            folder.remove()
            assert not started_processes(folder)
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(own.path).st_uid + 1)
        assert own.doubt() == "it is another user's"
        own.remove()
        monkeypatch.undo()
        assert elsewhere.is_dir() and link.is_symlink() and own.doubt() is None
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
    where = ServiceAddress("127.0.0.1:1", "x", token=str(tmp_path / "secret"), ray=home, device=noted.st_dev, inode=noted.st_ino)
    (service / SERVICE).write_text(json.dumps(asdict(where)))
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
    stop_head(ServiceAddress("127.0.0.1:1", "x", "n", str(tmp_path / "token"), own.path, own.device, own.inode), said.append)
    end_processes(own, grace_s=0.0)
    assert not said and not (tmp_path / "token").exists() and not Path(own.path).exists()
