"""Computing time of fluid replays of the 200-job production stream and of 300 jobs of Table 6, for `rollmux` and `solo`.

    python benchmarks/fluid_replay.py

Times are CPU seconds of this process, so that other processes on the machine influence them less.
For comparison, the simulator of Gavel (OSDI'20) takes about 12 s for a stream of 300 jobs (on its authors' machine).
"""

from __future__ import annotations

from time import process_time

import numpy as np
from rich.table import Table

from policies.registry import make_policy
from rollmux_env.replay.fluid import replay
from rollmux_env.report.tables import show
from rollmux_env.workloads import WorkloadOptions, make_workload

RUNS = 9


def main() -> None:
    """Replay each stream several times, and print the table."""
    table = Table("stream", "policy", "events", "median s", "min s", "max s")
    for name in ("production", "mixed"):
        for stays in ("fixed", "iterations"):
            scenario = make_workload(name, WorkloadOptions(stays=stays))
            for policy in ("rollmux", "solo"):
                replay(scenario, make_policy(policy))
                times = []
                for _ in range(RUNS):
                    began = process_time()
                    run = replay(scenario, make_policy(policy))
                    times.append(process_time() - began)
                low, median, high = np.percentile(times, (0, 50, 100))
                row = (f"{name}, {stays}", policy, str(len(run.log)), f"{median:.3f}", f"{low:.3f}", f"{high:.3f}")
                table.add_row(*row)
    show(table)


if __name__ == "__main__":
    main()
