"""What the kernel counts on the cables of the benchmark, between networks that are really apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
APART = shutil.which("unshare") and not subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tc") is None, reason="tc is not installed (Debian: iproute2)")
@pytest.mark.skipif(not APART, reason="no networks of one's own here: user namespaces are missing")
def test_the_kernel_counts_one_copy_on_the_link() -> None:
    case = ["--ranks", "3", "--nodes", "2", "--workers", "2", "--megabytes", "2", "--mbit", "200", "--times", "1"]
    ran = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sync.py"), *case],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    flat, aware = map(float, ran.stdout.splitlines()[-1].split()[-2:])
    assert 2 < flat < 2.2 and 1 < aware < 1.1  # with the headers of packets, and what they acknowledge
