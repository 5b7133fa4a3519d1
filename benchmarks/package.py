"""Size of the wheels, and what it takes to import the environments and to show the help.

python benchmarks/package.py

Seconds are of the command's own computing, so that neighbours on the machine count less; those of Python itself are in them.
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
    """Size of the wheel that is built of a source tree, kB."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.stat().st_size / 1e3


def main() -> None:
    sizes = make_table("wheel", "kB")
    for name, source in (("rollmux", ROOT), ("rollmux-client", ROOT / "clients" / "python")):
        with tempfile.TemporaryDirectory() as folder:
            sizes.add_row(name, f"{wheel_kb(source, Path(folder)):,.0f}")
    times = make_table("command", "runs", "median s", "min s", "max s")
    rounds = [[seconds(*program) for program in PROGRAMS.values()] for _ in range(RUNS)]  # in turns, beside the same neighbours
    for name, taken in zip(PROGRAMS, zip(*rounds, strict=True), strict=True):
        low, median, high = np.percentile(taken, (0, 50, 100))
        times.add_row(name, str(RUNS), f"{median:.3f}", f"{low:.3f}", f"{high:.3f}")
    show(sizes, times)


if __name__ == "__main__":
    main()
