"""Computing time of the exact optimum: for 13 jobs, 40 jobs, and the 200-job stream, which is solved again at every event.

    python benchmarks/optimum.py
    python benchmarks/optimum.py --shapes --seeds 1

With `--shapes`, 13, 20 and 40 jobs are grouped as they are and with the shapes of the workload, and nothing is replayed. The jobs
are those of the production stream (RollMux, arXiv 2512.11306, section 6.4). The paper's brute force takes over 5 h for 13 jobs
(Table 5, on its authors' machine). All rows are certified: the table contains the gap between value and bound. The replays also
compare Solo-D's costs with the optimum's. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.placement.optimal import Optimal
from policies.registry import make_policy
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.workloads import WorkloadOptions, make_workload

NAMES = {"usd": "optimal", "work": "optimal-work"}


def plan_times(count: int, seeds: int, shapes: bool = False) -> Table:
    """Measure the time to group the first jobs of the stream.

    Args:
        count: Number of jobs.
        seeds: Number of streams.
        shapes: Whether the jobs have the shapes of the workload.

    Returns:
        A table with a row for each objective. Values are in $/h, or in $ per work-hour.
    """
    title = f"{count} jobs present together{' with shapes' if shapes else ''}, {seeds} seeds"
    table = Table("policy", "jobs", "median s", "max s", "largest gap", "mean value", title=title)
    for objective, name in NAMES.items():
        times, gaps, values = [], [], []
        for seed in range(seeds):
            scenario = make_workload("production", WorkloadOptions(seed=seed, shapes=shapes))
            scenario = scenario.model_copy(update={"jobs": scenario.jobs[:count]})
            began = process_time()
            plan = Optimal(objective).plan(scenario)  # type: ignore[arg-type]
            times.append(process_time() - began)
            gaps.append(plan.gap)
            values.append(plan.value)
        figures = f"{np.median(times):.3f}", f"{max(times):.3f}", f"{max(gaps):.1e}", f"{np.mean(values):.2f}"
        table.add_row(name, str(count), *figures)
    return table


def replay_times(seeds: int) -> Table:
    """Measure the time to replay 200 jobs, and Solo-D's costs relative to the optimum's, on `seeds` streams."""
    heads = ("policy", "stays", "seed", "total s", "p50 ms", "max ms", "gap", "Solo-D $ / $", "Solo-D / per work-hour")
    table = Table(*heads, title="200 jobs, re-solved at every event")
    for stays in ("fixed", "iterations"):
        for seed in range(seeds):
            scenario = make_workload("production", WorkloadOptions(seed=seed, stays=stays))
            solo = metrics(replay(scenario, make_policy("solo")))
            for objective, name in NAMES.items():
                began = process_time()
                outcome = Optimal(objective).replay(scenario)  # type: ignore[arg-type]
                total_s = process_time() - began
                ms = np.array(outcome.decision_s) * 1e3
                table.add_row(
                    name,
                    stays,
                    str(seed),
                    f"{total_s:.1f}",
                    f"{np.median(ms):.1f}",
                    f"{ms.max():.0f}",
                    f"{outcome.extra['grouping_gap']:.1e}",
                    f"{solo.cost_usd / outcome.metrics.cost_usd:.3f}",
                    f"{solo.usd_per_work_hour / outcome.metrics.usd_per_work_hour:.3f}",
                )
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--replays", type=int, default=1, help="seeds of the 200-job stream")
    parser.add_argument("--shapes", action="store_true", help="of jobs with shapes, beside the same jobs as they are written")
    arguments = parser.parse_args()
    warm = make_workload("production", WorkloadOptions(seed=999, jobs=4))
    for objective in NAMES:
        Optimal(objective).plan(warm)  # type: ignore[arg-type]
    console = Console(width=120)
    if arguments.shapes:
        for count in (13, 20, 40):
            console.print(plan_times(count, arguments.seeds), plan_times(count, arguments.seeds, shapes=True))
        return
    console.print(plan_times(13, arguments.seeds))
    console.print(plan_times(40, arguments.seeds))
    console.print(replay_times(arguments.replays))


if __name__ == "__main__":
    main()
