"""Repeated runs of `make demo`: whether its two jobs share their nodes, their gain, and how well `rollmux compare` predicts it.

python benchmarks/demo_runs.py --runs 5 --busy 0 1 2 --fresh-caches

Each run is `rollmux run examples/two_jobs.yaml --compare solo`, next to a given number of processes that each keep a core busy. The
gain is in work per node-hour while both jobs are present and warm. The bound is what two phases side by side in the same run allow.
The error is that of the iteration time that `rollmux compare` predicts from the first fifth, for the job with the larger error.
Fresh caches are those of an installation that has run nothing yet, except for the compiled kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import NamedTuple

from rollmux_env.report.tables import make_table, show
from runtime.compare import compare
from runtime.journal.audit import audit
from runtime.journal.write import JOURNAL, read_facts, read_run
from runtime.report.folder import RESULTS

ROOT = Path(__file__).parents[1]
CACHES = ("ROLLMUX_CACHE", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class DemoFigures(NamedTuple):
    """Figures of a run.

    Attributes:
        shared: Whether the jobs shared a group.
        gain: Gain in work per node-hour, None if nothing was compared.
        bound: Bound of the gain, None if nothing was compared.
        error: Signed relative error of the prediction with the largest error, None if there is none.
        seconds: Time of the whole command, in seconds.
    """

    shared: bool
    gain: float | None
    bound: float | None
    error: float | None
    seconds: float


def main() -> None:
    """Run the demo with each number of busy processes, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each setting (5)")
    parser.add_argument("--busy", type=int, nargs="+", default=[0], metavar="N", help="processes beside that are always busy (0)")
    parser.add_argument("--fresh-caches", action="store_true", help="each run begins with empty caches of engines and profiles")
    arguments = parser.parse_args()
    every = make_table("busy", "run", "shared", "gain", "bound", "of the bound", "compare's error", "seconds", left=2)
    settings = make_table("busy", "runs", "shared", "gain", "bound", "of the bound", "compare's error", "seconds")
    for busy in arguments.busy:
        runs = []
        for number in range(1, 1 + arguments.runs):
            with beside(busy):
                runs.append(run(arguments.fresh_caches))
            print(f"{busy} busy, run {number}: {runs[-1].seconds:.0f} s", flush=True)
            every.add_row(str(busy), str(number), *cells(runs[-1:]))
        settings.add_row(str(busy), str(len(runs)), *cells(runs))
    show(every, settings)


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    """Keep `busy` processes computing during the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(fresh: bool) -> DemoFigures:
    """Run the demo once, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="rollmux-demo-") as place:
        caches = {name: str(Path(place) / name) for name in CACHES} if fresh else {}
        for cache in caches.values():
            Path(cache).mkdir()
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "rollmux", "run", "examples/two_jobs.yaml", "--compare", "solo", "--out", str(folder)]
        began = monotonic()
        said = subprocess.run(command, env=os.environ | caches, cwd=ROOT, capture_output=True, text=True)
        seconds = monotonic() - began
        if said.returncode:
            sys.exit(f"{said.stdout}\n{said.stderr}")
        if problems := audit(read_facts(folder / JOURNAL)).problems:
            sys.exit("\n".join(problems))
        results = json.loads((folder / RESULTS).read_text())
        errors = [job["error"] for job in compare(read_run(folder))["jobs"].values()]
    shared, gained = any(len(group["jobs"]) > 1 for group in results["groups"]), results["throughput"] or {}
    return DemoFigures(shared, gained.get("gain"), gained.get("bound"), max(errors, key=abs, default=None), seconds)


def cells(runs: Sequence[DemoFigures]) -> tuple[str, ...]:
    """Return the figures of a single run, or the means of several with the smallest and the largest value."""
    shared = sum(one.shared for one in runs)
    of_bound = [one.gain / one.bound for one in runs if one.gain and one.bound]
    return (
        ("yes" if shared else "no") if len(runs) == 1 else f"{shared} of {len(runs)}",
        spread([one.gain for one in runs], "{:.2f}x"),
        spread([one.bound for one in runs], "{:.2f}x"),
        spread(of_bound, "{:.0%}"),
        spread([one.error for one in runs], "{:+.1%}"),
        spread([one.seconds for one in runs], "{:.0f}"),
    )


def spread(values: Sequence[float | None], form: str) -> str:
    """Return the mean, and the smallest and the largest value if there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = form.format(fmean(known))
    return mean if len(known) == 1 else f"{mean} ({form.format(min(known))} to {form.format(max(known))})"


if __name__ == "__main__":
    main()
