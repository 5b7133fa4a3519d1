"""Policies on growing clusters: time of a decision, time of a whole stream, and dollars.

    python benchmarks/scale.py [--jobs 500 2000 5000 20000] [--policies rollmux consolidate ...] [--chart scale.png]

A stream is `production` with the given number of jobs, which arrive so close together that over a third are active at once. It is
replayed (fluid) as a whole under each policy. Times are CPU seconds: of the replay, and of all decisions, including those about
departures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from policies.registry import make_runnable
from rollmux_env.bench.harness import Contender
from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import Plan, Policy
from rollmux_env.cluster.state import State
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.report.styles import draw
from rollmux_env.report.tables import show
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload

POLICIES = ("solo", "rollmux", "rollmux,prune=false", "learned:default,moves=false", "learned:default", "consolidate")
CLOSER = 0.0055 * 5000  # divided by the number of jobs: factor on the times of arrivals


class TimedPlacement:
    """A policy that measures the time of its decisions.

    Args:
        policy: The policy.

    Attributes:
        decisions: Number of running jobs and time in milliseconds, for each decision.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.keeps_slo = policy.keeps_slo
        self.decisions: list[tuple[int, float]] = []

    def decide(self, state: State, event: Event) -> Plan:
        """Return the policy's plan."""
        began_s = process_time()
        plan = self.policy.decide(state, event)
        self.decisions.append((state.arrived - state.departed - len(state.waiting), 1e3 * (process_time() - began_s)))
        return plan


class ScaleFigures(NamedTuple):
    """Outcome of a stream under a policy.

    Attributes:
        policy: Name of the policy.
        active: Largest number of active jobs.
        p50_ms: Median time of a decision, in milliseconds.
        p99_ms: 99th percentile of the time of a decision, in milliseconds.
        busy_ms: Median time of the tenth of the decisions with the most active jobs, in milliseconds.
        replay_s: CPU time of the replay, in seconds.
        usd_per_work_hour: Cost of a work-hour, in dollars.
        slo: SLO attainment.
        moves: Number of moves.
    """

    policy: str
    active: int
    p50_ms: float
    p99_ms: float
    busy_ms: float
    replay_s: float
    usd_per_work_hour: float
    slo: float
    moves: int


def crowded(jobs: int, seed: int) -> Scenario:
    """Return the production stream with `jobs` jobs, of which over a third are active at once."""
    stream = make_workload("production", WorkloadOptions(jobs=jobs, seed=seed))
    closer = min(1.0, CLOSER / jobs)
    nearer = tuple(job.model_copy(update={"arrival_s": closer * job.arrival_s}) for job in stream.jobs)
    return stream.model_copy(update={"jobs": nearer})


def outcome(stream: Scenario, name: str) -> ScaleFigures:
    """Replay a stream under a policy, and return its outcome."""
    timed = TimedPlacement(make_runnable(name))
    began_s = process_time()
    contender: Contender = timed
    run = replay(stream, contender)
    took_s = process_time() - began_s
    active, ms = np.array(timed.decisions).T
    figures = metrics(run)
    p50, p99 = np.percentile(ms, (50, 99))
    busy = float(np.median(ms[active >= np.quantile(active, 0.9)]))
    work = figures.usd_per_work_hour
    return ScaleFigures(name, int(active.max()), p50, p99, busy, took_s, work, figures.slo_attainment, figures.migrations)


def chart(path: Path, outcomes: list[ScaleFigures]) -> None:
    """Draw two panels over the largest number of active jobs: the median decision time of `busy_ms`, and dollars per work-hour."""
    picture = Figure(figsize=(9, 3.6), layout="constrained")
    panels = picture.subplots(1, 2)
    for name in dict.fromkeys(one.policy for one in outcomes):
        own = sorted((one.active, one.busy_ms, one.usd_per_work_hour) for one in outcomes if one.policy == name)
        xs, *figures = np.array(own).T
        for axes, ys in zip(panels, figures, strict=True):
            draw(axes, xs, ys[None, :], name, name, marker="o", markersize=4)
    for axes, says in zip(panels, ("a decision, ms (median)", "$ per work-hour"), strict=True):
        axes.set(xscale="log", xlabel="most active jobs", ylabel=says)
        axes.grid(alpha=0.2, which="both")
    panels[0].set(yscale="log")
    panels[1].set(ylim=(0.0, None))
    panels[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    picture.savefig(path, dpi=110)


def main() -> None:
    """Replay the streams, print the table, and draw the chart if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="*", default=[500, 2000, 5000, 20000], help="numbers of jobs of a stream")
    parser.add_argument("--policies", nargs="*", default=[*POLICIES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chart", type=Path, help="a PNG file")
    asked = parser.parse_args()
    for name in asked.policies:
        replay(crowded(40, asked.seed), make_runnable(name))  # compiles the kernel
    columns = ("jobs", "most active", "policy", "p50 ms", "p99 ms", "busy p50 ms", "replay s", "$ per work-hour", "SLO", "moves")
    table = Table(*columns)
    outcomes = []
    for jobs in asked.jobs:
        stream = crowded(jobs, asked.seed)
        for name in asked.policies:
            one = outcome(stream, name)
            outcomes.append(one)
            times = (f"{ms:.2f}" for ms in (one.p50_ms, one.p99_ms, one.busy_ms))
            row = (f"{jobs:,}", f"{one.active:,}", name, *times, f"{one.replay_s:.1f}")
            table.add_row(*row, f"{one.usd_per_work_hour:.2f}", f"{one.slo:.3f}", f"{one.moves:,}")
    show(table)
    if asked.chart is not None:
        chart(asked.chart, outcomes)


if __name__ == "__main__":
    main()
