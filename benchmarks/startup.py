"""Time of `rollmux --help`, and of the first commands of a new installation, which compile the kernel.

python benchmarks/startup.py

Times are CPU seconds of the command, so that other processes on the machine influence them less.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

import numpy as np
from rich.table import Table

from rollmux_env.report.tables import show

BENCH = "import rollmux; rollmux.main()", "bench", "production"
STEP = "import sys, gymnasium, rollmux_env; env = gymnasium.make(sys.argv[1]); env.reset(seed=0); env.step(0)"


def seconds(*arguments: str, **environment: str) -> float:
    """Return the CPU seconds of a Python program in a new process.

    Args:
        *arguments: Text of the program, and its arguments.
        **environment: Environment variables to set.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Run the commands of each installation, and print the table."""
    installations = (  # commands in order; at the beginning of each installation nothing is compiled
        {
            "bench production -p solo -p rollmux": (*BENCH, "-p", "solo", "-p", "rollmux"),
            "then -p consolidate": (*BENCH, "-p", "consolidate"),
        },
        {"a step of RollMux/Placement-v0": (STEP, "RollMux/Placement-v0")},
        {"a step of RollMux/Dispatch-v0": (STEP, "RollMux/Dispatch-v0")},
    )
    table = Table("command", "runs", "median s", "min s", "max s")
    rows = {"rollmux --help": [seconds(BENCH[0], "--help") for _ in range(10)]}
    for programs in installations:
        with tempfile.TemporaryDirectory() as cache:
            for name, program in programs.items():
                rows[f"{name}, not compiled yet"] = [seconds(*program, NUMBA_CACHE_DIR=cache)]
                rows[f"{name}, afterwards"] = [seconds(*program, NUMBA_CACHE_DIR=cache) for _ in range(3)]
    for name, times in rows.items():
        low, median, high = np.percentile(times, (0, 50, 100))
        table.add_row(name, str(len(times)), f"{median:.2f}", f"{low:.2f}", f"{high:.2f}")
    show(table)


if __name__ == "__main__":
    main()
