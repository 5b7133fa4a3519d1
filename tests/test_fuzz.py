"""Damaged files of every kind, for all commands: a small share of what benchmarks/fuzz.py runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_whatever_files_hold_commands_work_or_say_what_is_wrong_in_one_line() -> None:
    command = [sys.executable, "benchmarks/fuzz.py", "--cases", "60", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "60 cases" in done.stdout, done.stdout + done.stderr
