"""Size of the wheels, and the time to import the environments and to show the help.

python benchmarks/package.py

Times are CPU seconds of the command, so that other processes on the machine influence them less. They include Python's own start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from startup import BENCH, seconds

from rollmux_env.report.tables import make_table, show

ROOT = Path(__file__).resolve().parents[1]
RUNS = 20
PROGRAMS = {
    "python -c pass": ("pass",),
    "import rollmux_env": ("import rollmux_env",),
    "import rollmux_client": ("import rollmux_client",),
    "rollmux --help": (BENCH[0], "--help"),
}


def wheel_kb(source: Path, folder: Path) -> float:
    """Return the size of the wheel built from a source tree, in kB."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.stat().st_size / 1e3


def main() -> None:
    """Build the wheels, run the commands, and print two tables."""
    sizes = make_table("wheel", "kB")
    for name, source in (("rollmux", ROOT), ("rollmux-client", ROOT / "clients" / "python")):
        with tempfile.TemporaryDirectory() as folder:
            sizes.add_row(name, f"{wheel_kb(source, Path(folder)):,.0f}")
    times = make_table("command", "runs", "median s", "min s", "max s")
    rounds = [[seconds(*program) for program in PROGRAMS.values()] for _ in range(RUNS)]  # in turns, under the same conditions
    for name, taken in zip(PROGRAMS, zip(*rounds, strict=True), strict=True):
        low, median, high = np.percentile(taken, (0, 50, 100))
        times.add_row(name, str(RUNS), f"{median:.3f}", f"{low:.3f}", f"{high:.3f}")
    show(sizes, times)


if __name__ == "__main__":
    main()
