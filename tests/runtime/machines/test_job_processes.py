"""Processes that a job leaves behind end with it, however they have detached themselves; who reads its logs does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from runtime.machines.job_processes import end_job_processes, started

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
    with subprocess.Popen(["tail", "-f", str(tmp_path / "job" / "controller.log")], stdout=subprocess.DEVNULL) as reader:
        assert all(started(pid) for pid in pids["job"] + pids["job2"])
        end_job_processes(str(tmp_path / "job"))
        assert not any(started(pid) for pid in pids["job"])
        assert all(started(pid) for pid in pids["job2"]) and reader.poll() is None and started(os.getpid())
        end_job_processes(str(tmp_path))
        assert not any(started(pid) for pid in pids["job2"]) and reader.poll() is None
        reader.kill()
