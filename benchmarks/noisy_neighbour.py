"""Effect of a user who asks ten times as often as before on the other users of a service, as the time of their permits.

    python benchmarks/noisy_neighbour.py --repeats 5

Nine users hold permits at their share of a rate. A tenth user does the same, and in every other window asks ten times as often,
with ten times as many jobs. Every window has a new service. Every job has its nodes to itself, so that no job waits for a place.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from attached_load import ATTACH_S, ClientWork, OurJob, drive, quantile, served, submit

from rollmux_env.report.tables import make_table, show

_USERS = 10
_JOBS = 20  # number of jobs of a user
_TIMES = 10


def window(times: int, permits: float, seconds: float) -> tuple[list[float], list[float]]:
    """Run one window.

    Args:
        times: Factor on how often the tenth user asks, relative to each of the others.
        permits: Permits per second of all ten users while they ask equally often.
        seconds: Length of the window, in seconds.

    Returns:
        Times of the permits of the nine users and of the tenth one, each sorted, in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="rollmux-noisy-") as place:
        folder, count = Path(place), _JOBS * (_USERS - 1 + _TIMES)
        with served(folder, count) as (url, _):
            jobs = submit(folder, url, _JOBS * (_USERS - 1), _USERS - 1)
            loud = submit(folder, url, _JOBS * times, 1, "loud")
            begin_s = time.monotonic() + ATTACH_S
            every_s, until_s = _JOBS * _USERS / permits, begin_s + seconds
            clients = [ClientWork(OurJob, url, part, every_s, begin_s, until_s) for part in (jobs[::2], jobs[1::2], loud)]
            figures = drive(clients, lambda: time.sleep(max(0.0, until_s - time.monotonic())))
    if refused := [status for each in figures for status in each.refused]:
        raise SystemExit(f"refused: {refused}")
    took_s = [[took_s for _, took_s in each.permits] for each in figures]
    return sorted(took_s[0] + took_s[1]), sorted(took_s[2])


def main() -> None:
    """Run the windows in pairs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--permits", type=float, default=100.0, help="a second, of all ten users while they ask alike")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a window")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    table = make_table("repeat", "the tenth asks", "others p50 ms", "others p99 ms", "its own p99 ms", "permits a second")
    factors = []
    for repeat in range(arguments.repeats):
        p99s = []
        for times in (1, _TIMES) if repeat % 2 == 0 else (_TIMES, 1):
            others, own = window(times, arguments.permits, arguments.seconds)
            p99s.append((times, quantile(others, 0.99)))
            cells = [f"{1e3 * value:.1f}" for value in (quantile(others, 0.5), quantile(others, 0.99), quantile(own, 0.99))]
            table.add_row(str(repeat), f"{times} times", *cells, f"{(len(others) + len(own)) / arguments.seconds:.0f}")
        factors.append(dict(p99s)[_TIMES] / dict(p99s)[1])
    show(table)
    spread = ", ".join(f"{factor:.2f}" for factor in sorted(factors))
    print(f"others' p99 beside it: {median(factors):.2f} times what it was, of {spread}")


if __name__ == "__main__":
    main()
