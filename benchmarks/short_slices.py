"""Effect of short slices of a core (`runtime.short_slices`) on a thread that sleeps and wakes beside busy loops.

    python benchmarks/short_slices.py --loops 3 --repeats 4

Two equal processes, one with short slices and one without, run at the same time, so that both compete with the same loops. Each
repeatedly sleeps 4 ms and computes for 0.3 ms, like the thread that makes the commits of a service. The benchmark prints how late
they wake, as the median of the repeats and for each repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from attached_load import busy, quantile

from rollmux_env.report.tables import make_table, show
from runtime.short_slices import ask_for_short_slices

_SLEEPS_S, _COMPUTES_S = 0.004, 0.0003
_QUANTILES = (0.5, 0.9, 0.99)


def wake_late(short: bool, seconds: float) -> list[float]:
    """Sleep and wake repeatedly, and return how late the wakes were at each quantile, in ms.

    Args:
        short: Whether to ask for short slices.
        seconds: Duration, in seconds.
    """
    if short and not ask_for_short_slices():
        raise SystemExit("this kernel has no short slices")
    late_s, until_s = [], time.monotonic() + seconds
    while (began_s := time.monotonic()) < until_s:
        time.sleep(_SLEEPS_S)
        late_s.append(time.monotonic() - began_s - _SLEEPS_S)
        while time.monotonic() < began_s + late_s[-1] + _SLEEPS_S + _COMPUTES_S:
            pass
    return [1e3 * quantile(sorted(late_s), q) for q in _QUANTILES]


def main() -> None:
    """Run pairs of processes, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--loops", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--one", choices=["short", "usual"], help="what a process of a pair does")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(wake_late(asked.one == "short", asked.seconds)))
        return
    late: dict[str, list[list[float]]] = {"short": [], "usual": []}
    with busy(asked.loops):
        for _ in range(asked.repeats):
            own = [sys.executable, __file__, "--seconds", str(asked.seconds), "--one"]
            pair = {name: subprocess.Popen([*own, name], stdout=subprocess.PIPE, text=True) for name in late}
            for name, process in pair.items():
                late[name].append(json.loads(process.communicate()[0]))
    table = make_table("slices", *(f"late by, p{100 * q:g} ms" for q in _QUANTILES))
    for name, repeats in late.items():
        of_quantiles = ([repeat[number] for repeat in repeats] for number in range(len(_QUANTILES)))
        table.add_row(name, *(f"{statistics.median(own):.1f} ({', '.join(f'{one:.1f}' for one in own)})" for own in of_quantiles))
    show(table)


if __name__ == "__main__":
    main()
