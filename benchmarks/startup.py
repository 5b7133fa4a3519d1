"""Time of `rollmux --help`, and of the first decision of a fresh installation, which compiles the kernel.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.table import Table

from rollmux_env.report.tables import show

HERE = Path(__file__).resolve().parent
PLAN = ("plan", str(HERE.parent / "examples" / "quickstart.yaml"))


def seconds(*arguments: str, **environment: str) -> float:
    """Wall-clock seconds of one run of the command in a process of its own."""
    command = [sys.executable, "-c", "import rollmux; rollmux.main()", *arguments]
    began = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment)
    return perf_counter() - began


def main() -> None:
    table = Table("command", "runs", "median s", "min s", "max s")
    with tempfile.TemporaryDirectory() as cache:
        rows = {
            "rollmux --help": [seconds("--help") for _ in range(10)],
            "rollmux plan, kernel not compiled yet": [seconds(*PLAN, NUMBA_CACHE_DIR=cache)],
            "rollmux plan, afterwards": [seconds(*PLAN, NUMBA_CACHE_DIR=cache) for _ in range(5)],
            "the same with consolidate, not compiled yet": [seconds(*PLAN, "-p", "consolidate", NUMBA_CACHE_DIR=cache)],
            "the same with consolidate, afterwards": [seconds(*PLAN, "-p", "consolidate", NUMBA_CACHE_DIR=cache) for _ in range(5)],
        }
    for name, times in rows.items():
        low, median, high = np.percentile(times, (0, 50, 100))
        table.add_row(name, str(len(times)), f"{median:.2f}", f"{low:.2f}", f"{high:.2f}")
    show(table)


if __name__ == "__main__":
    main()
