"""Which processes are those of a Ray of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from runtime.machines.own_ray import MARK, end_processes, started_processes
from runtime.own_folder import OwnFolder
from tests.runtime.test_own_folder import own as own  # the fixture

SLEEP = "import sys, time; print(flush=True); time.sleep(600)"


def test_they_are_found_by_their_environment_or_by_a_file_that_they_have_open(own: OwnFolder) -> None:
    folder = Path(own.path)
    with (folder / "log").open("w") as log:
        marked = subprocess.Popen([sys.executable, "-c", SLEEP], env={**os.environ, MARK: str(folder)}, stdout=subprocess.PIPE)
        holding = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, stderr=log)
    other = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE)
    try:
        for process in (marked, holding, other):
            assert process.stdout is not None and process.stdout.readline() == b"\n"
        assert sorted(started_processes(own)) == sorted([marked.pid, holding.pid])
        end_processes(own, grace_s=0.0)
        assert marked.wait() == holding.wait() == -9
        assert other.poll() is None
    finally:
        for process in (marked, holding, other):
            process.kill()
            process.communicate()
