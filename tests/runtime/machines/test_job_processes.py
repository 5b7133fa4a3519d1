"""Processes that a job leaves behind end with it, however they have detached themselves; who reads its logs does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.machines import job_processes
from runtime.machines.job_processes import end_job_processes, started
from tests.children import Child

LEAVES = """
import os, subprocess, sys, time
from runtime.machines.job_processes import mark_process
from runtime.output import capture

capture(sys.argv[1], "controller")
mark_process(sys.argv[1])
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
pids = [subprocess.Popen(["sleep", "1000"], **quiet).pid]
read, write = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.write(write, str(os.getpid()).encode())
        time.sleep(1000)
    os._exit(0)
pids.append(int(os.read(read, 20)))
with open(sys.argv[2], "w") as file:
    file.write(" ".join(map(str, pids)))
os._exit(0)
"""


def test_what_a_job_leaves_behind_ends_and_nothing_else(tmp_path: Path) -> None:
    pids: dict[str, list[int]] = {}
    for name in ("job", "job2"):
        subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path / name), str(tmp_path / "pids")], check=True)
        pids[name] = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    with Child(["tail", "-f", str(tmp_path / "job" / "controller.log")], stdout=subprocess.DEVNULL) as reader:
        assert all(started(pid) for pid in pids["job"] + pids["job2"])
        end_job_processes(str(tmp_path / "job"))
        assert not any(started(pid) for pid in pids["job"])
        assert all(started(pid) for pid in pids["job2"]) and reader.poll() is None and started(os.getpid())
        end_job_processes(str(tmp_path))
        assert not any(started(pid) for pid in pids["job2"]) and reader.poll() is None


def test_a_process_whose_first_thread_has_ended_lives_and_ends_with_its_job_if_it_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of CUDA that is taken apart: it has no environment and no files any more, but may still have memory of a GPU."""
    monkeypatch.setattr(job_processes, "_GRACE_S", 0.0)
    thread = "threading.Thread(target=time.sleep, args=(1000,)).start()"
    works = f"import ctypes, threading, time; {thread}; ctypes.CDLL(None).pthread_exit(0)"
    with Child([sys.executable, "-c", works]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        start = started(process.pid)
        assert start
        end_job_processes(str(tmp_path), [(process.pid, start + 1)])  # another one that had the number
        assert started(process.pid) == start
        reaps = threading.Thread(target=process.wait)
        reaps.start()
        end_job_processes(str(tmp_path), [(process.pid, start)])
        assert not started(process.pid)
        reaps.join()
