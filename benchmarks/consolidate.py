"""Savings of `consolidate` over Algorithm 1, and the time of its decisions with 200 active jobs.

    python benchmarks/consolidate.py [--seeds 10] [--first-seed 0] [--workload production]

Dollars are given as Solo-D's divided by the policy's, as the mean over seeds with its 95% interval. SLO attainment is the smallest
one. All policies replay the same streams, and pay for their moves.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.registry import make_policy, make_runnable
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.cluster.plan import Policy
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload

POLICIES = ("rollmux", "rollmux,prune=false", "consolidate", "consolidate,known_stays=false")
ACTIVE_JOBS = 200
STAYS: tuple[Literal["fixed", "iterations"], ...] = ("fixed", "iterations")


def savings(workload: str, stays: Literal["fixed", "iterations"], seeds: range) -> Table:
    """Return a table with the dollars and the dollars per work-hour of every policy on the same streams."""
    title = f"{workload}, {stays}, seeds {seeds[0]}-{seeds[-1]}"
    table = Table("policy", "Solo-D over $", "per work-hour", "SLO", "moves", "p50 ms", "p99 ms", title=title)
    streams = [make_workload(workload, WorkloadOptions(seed=seed, stays=stays)) for seed in seeds]
    alone = [metrics(replay(stream, make_runnable("solo"))) for stream in streams]
    for name in POLICIES:
        runs = [replay(stream, make_runnable(name)) for stream in streams]
        figures = [metrics(run) for run in runs]
        usd = mean_interval([solo.cost_usd / ours.cost_usd for solo, ours in zip(alone, figures, strict=True)])
        work = mean_interval([solo.usd_per_work_hour / ours.usd_per_work_hour for solo, ours in zip(alone, figures, strict=True)])
        p50, p99 = np.percentile(np.concatenate([run.decision_s for run in runs]) * 1e3, (50, 99))
        table.add_row(
            name,
            usd.text(),
            work.text(),
            f"{min(m.slo_attainment for m in figures):.3f}",
            f"{np.mean([m.migrations for m in figures]):.0f}",
            f"{p50:.1f}",
            f"{p99:.1f}",
        )
    return table


def crowded(stays: Literal["fixed", "iterations"]) -> Scenario:
    """Return the production stream with 500 jobs that arrive so fast that over 200 are active at once."""
    stream = make_workload("production", WorkloadOptions(jobs=500, stays=stays))
    jobs = tuple(job.model_copy(update={"arrival_s": 0.065 * job.arrival_s}) for job in stream.jobs)
    return stream.model_copy(update={"jobs": jobs})


def decision_times(stays: Literal["fixed", "iterations"]) -> list[str]:
    """Return a table row about the decisions on arrivals and departures with at least 200 active jobs."""
    policy = make_runnable("consolidate")
    times: list[float] = []

    class Timed:
        keeps_slo = True

        def decide(self, state, event):  # type: ignore[no-untyped-def]
            began = perf_counter()
            plan = policy.decide(state, event)
            if state.tables.groups.n_members[state.tables.order].sum() >= ACTIVE_JOBS:
                times.append(1e3 * (perf_counter() - began))
            return plan

    timed: Policy = Timed()
    stream = crowded(stays)
    ours = metrics(replay(stream, timed)).cost_usd
    plain = metrics(replay(stream, make_runnable("rollmux,prune=false"))).cost_usd
    return [stays, str(len(times)), *(f"{ms:.1f}" for ms in np.percentile(times, (50, 99, 100))), f"{plain / ours:.3f}x"]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure what consolidate saves and how long it takes.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workload", default="production")
    asked = parser.parse_args()
    console = Console()
    replay(make_workload("production", WorkloadOptions(jobs=5)), make_policy("consolidate"))  # compiles the kernel
    for stays in STAYS:
        console.print(savings(asked.workload, stays, range(asked.first_seed, asked.first_seed + asked.seeds)))
    title = f"decisions with {ACTIVE_JOBS} jobs active or more"
    table = Table("stays", "decisions", "p50 ms", "p99 ms", "max ms", "rollmux,prune=false over $", title=title)
    for stays in STAYS:
        table.add_row(*decision_times(stays))
    console.print(table)


if __name__ == "__main__":
    main()
