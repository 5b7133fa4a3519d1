"""Ctrl-C, and what is left of a run afterwards: nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from runtime.journal.audit import check_run
from runtime.journal.write import read_run
from runtime.own_folder import OwnFolder
from tests.conftest import Command
from tests.runtime.coordinator.set_back import repeats_only_what_was_not_saved
from tests.runtime.sockets import listens_only_on_loopback

TOYS = Path(__file__).parents[1]
JOBS = """version: 1
defaults:
  {{slo: 3, iterations: 1000, folder: {folder}, class: "toy_jobs:Sleeper", options: {{rollout_s: {seconds}, train_s: {seconds}}}}}
jobs: [{{id: a}}, {{id: b}}]
"""


def processes(marker: str) -> list[int]:
    """Ids of the processes that were started with a marker in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes() and "Z" not in state(entry):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def ray_folders(marker: str) -> set[Path]:
    """Folders in which the Ray of those processes keeps its files."""
    texts = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes(marker)]
    return {Path("/tmp") / found for text in texts for found in re.findall(r"/tmp/(rollmux-ray-\w+)", text)}


def noted(folder: Path) -> OwnFolder:
    """A folder as who made it would have noted it."""
    found = folder.stat()
    return OwnFolder(str(folder), found.st_dev, found.st_ino)


def state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(("interrupts", "seconds"), [(1, 0.3), pytest.param(2, 0.3, marks=pytest.mark.long), (2, 60)])
def test_ctrl_c_stops_at_the_next_phase_boundary_and_twice_at_once(tmp_path: Path, interrupts: int, seconds: float) -> None:
    marker = f"rollmux-test-{uuid.uuid4().hex}"
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS.format(seconds=seconds, folder=TOYS))
    environment = {**os.environ, "MARKER": marker, "ROLLMUX_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-m", "rollmux", "run", str(file), "--out", str(tmp_path / "out")]
    driver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert driver.stdout is not None
    if seconds < 1:
        while "iteration 2" not in driver.stdout.readline():
            assert driver.poll() is None, driver.communicate()
    else:
        while len(processes(marker)) < 5:  # Ray starts, or the first phase runs, which takes longer than this test may
            assert driver.poll() is None, driver.communicate()
            time.sleep(0.1)
    folders = ray_folders(marker)
    assert seconds > 1 or all(listens_only_on_loopback(noted(folder)) for folder in folders)
    for _ in range(interrupts):
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the whole group
        time.sleep(0.5)
    out, err = driver.communicate(timeout=600)  # it hangs if that is over
    assert driver.returncode == 130, out + err
    assert err == ""
    until_s = time.monotonic() + 60
    while processes(marker) and time.monotonic() < until_s:  # what has been killed takes a moment to go
        time.sleep(0.1)
    assert not processes(marker)
    assert folders and not any(folder.exists() for folder in folders)
    if interrupts == 1:
        record = read_run(tmp_path / "out")
        assert record.ended is not None and record.ended.outcome == "stopped"
        assert all(part.ok for part in record.phases)
        check_run(record)
        assert out.endswith(f"\nstopped; `rollmux run --resume {tmp_path / 'out'}` continues it\n")


def test_a_run_whose_driver_was_killed_goes_on_once_and_leaves_nothing_behind(tmp_path: Path, command: Command) -> None:
    marker = f"rollmux-test-{uuid.uuid4().hex}"
    file, folder = tmp_path / "jobs.json", tmp_path / "out"
    does = {"train 6": "once; hang"}  # the run is not over before it is killed
    options = {"train_s": 0.2, "does": does, "folder": str(tmp_path)}
    job = {"id": "a", "class": "toy_jobs:Counter", "folder": str(TOYS), "iterations": 12, "slo": 3, "options": options}
    job["checkpoint"] = {"every": 1}
    file.write_text(json.dumps({"version": 1, "jobs": [job]}))
    environment = {**os.environ, "MARKER": marker, "ROLLMUX_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    running = [sys.executable, "-u", "-m", "rollmux", "run"]
    begun = subprocess.Popen([*running, str(file), "--out", str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "done").exists():  # its processes outlive the driver for a moment, and might end the run before they hang
        assert begun.poll() is None
        time.sleep(0.05)
    refused = (2, "", f"rollmux: {folder}: a run is under way in this folder (process {begun.pid})\n")
    assert command("run", "--resume", str(folder)) == refused
    folders = ray_folders(marker)
    begun.kill()
    begun.communicate()
    seen = " ".join(command("status", "--at", str(folder))[1].split())
    assert "killed, last heard of at" in seen and f"`rollmux run --resume {folder}` continues it" in seen
    again = subprocess.run([*running, "--resume", str(folder)], env=environment, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, ""), again.stdout
    record = read_run(folder)
    check_run(record)
    (relaunch,) = record.relaunched
    assert repeats_only_what_was_not_saved(record, "a", relaunch.at_s)
    assert [done.metrics["count"] for done in record.iterations] == [*range(1, 13)]
    assert not processes(marker) and folders and not any(path.exists() for path in folders)
    status, _, err = command("run", "--resume", str(folder))
    assert status == 2 and err.endswith("this run is done; there is nothing to continue\n")
