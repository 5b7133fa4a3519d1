"""What the machine takes from a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest

from runtime.machine import core_wait_s
from tests.children import Child


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count how long a process has no core")
def test_a_process_that_shares_its_core_with_another_one_waits_for_it() -> None:
    """Both are always ready to run, so while this one works for 0.3 s the other one has the core for about as long."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    try:
        with Child(busy, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline()
            worked_s, waited_s = process_time(), core_wait_s()
            while process_time() < worked_s + 0.3:
                pass
            waited_s = core_wait_s() - waited_s
    finally:
        os.sched_setaffinity(0, cores)
    assert waited_s > 0.1
