"""Simulated phases per second in event replays of the production stream (200 jobs) and of 300 jobs of Table 6, by dispatch policy.

    python benchmarks/event_replay.py

Durations are lognormal with a mean of 0.6 of the worst case and a coefficient of variation of 0.25. The production stream has the
paper's warm and cold starts. Times are CPU seconds of this process, so that other processes on the machine influence them less.
"""

from __future__ import annotations

from time import process_time

import numpy as np
from rich.table import Table

from policies.dispatch import DISPATCH, make_dispatch
from policies.registry import make_policy
from rollmux_env.bench.streams import with_actual
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.metrics import metrics
from rollmux_env.report.tables import show
from rollmux_env.workloads import WorkloadOptions, make_workload

RUNS = 3


def main() -> None:
    """Replay each stream under each dispatch policy, and print the table."""
    table = Table("stream", "dispatch", "phases", "median s", "min s", "max s", "phases/s", "hours", "observed SLO")
    for name in ("production", "mixed"):
        scenario = with_actual(make_workload(name, WorkloadOptions(switches=name == "production")), mean_fraction=0.6, cv=0.25)
        for dispatch in DISPATCH:
            times = []
            for _ in range(RUNS):
                began = process_time()
                run = replay_events(scenario, make_policy("rollmux"), make_dispatch(dispatch), seed=0)
                times.append(process_time() - began)
            phases = 2 * int(run.state.tables.jobs.done.sum())
            low, median, high = np.percentile(times, (0, 50, 100))
            figures = metrics(run)
            outcome = (f"{figures.hours:.1f}", f"{figures.slo_attainment_observed:.3f}")
            table.add_row(
                name, dispatch, str(phases), f"{median:.2f}", f"{low:.2f}", f"{high:.2f}", f"{phases / median:,.0f}", *outcome
            )
    show(table)


if __name__ == "__main__":
    main()
