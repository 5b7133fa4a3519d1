"""Computing time of orders and parks: fluid replays with and without them, and decisions beside a long queue.

    python benchmarks/queue_orders.py

Replays are of 1,000 jobs of `mixed` at load 1.6. Decisions are about jobs that arrive at such a fleet when it is full and other
jobs wait, without and with backfill. Times are CPU seconds of this process, so that other processes on the machine influence them
less; replays that are compared take turns, and `times` is the median over their pairs.
"""

from __future__ import annotations

from itertools import islice
from time import process_time

import numpy as np
from rich.table import Table

from policies.registry import make_runnable
from rollmux_env.cluster.state import State
from rollmux_env.replay.fluid import replay
from rollmux_env.report.tables import show
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.fleets import with_fleet

POLICIES = ("solo", "rollmux,prune=false", "fleet")
WITH = "order=area,park=true"
RULES = (WITH, f"{WITH},backfill=true")
RUNS, DECISIONS = 3, 200


def replay_times_s(policy: str, runs: int) -> tuple[list[float], list[float]]:
    """Return the times of replays without and with an order and parks, in turns."""
    scenario = with_fleet(make_workload("mixed", WorkloadOptions(jobs=1000)), "load=1.6")
    times: tuple[list[float], list[float]] = [], []
    for _ in range(runs):
        for taken_s, spec in zip(times, (policy, f"{policy},{WITH}"), strict=True):
            runnable = make_runnable(spec)
            began = process_time()
            replay(scenario, runnable)
            taken_s.append(process_time() - began)
    return times


def decision_ms(policy: str, waiting: int) -> float:
    """Return the median time of the instant at which a job arrives while others wait, in milliseconds.

    Args:
        policy: Name of the policy, with its rules of the queue.
        waiting: Number of jobs that wait, beside a full fleet.
    """
    scenario = with_fleet(make_workload("mixed", WorkloadOptions(jobs=1000)), "load=1.6")
    scheduler = Scheduler(State(scenario.cluster), make_runnable(policy))
    jobs, times = iter(scenario.jobs), []
    while len(scheduler.state.waiting) < max(1, waiting):
        scheduler.step(0.0, [facts.Queued(next(jobs))])
    if not waiting:
        scheduler.step(0.0, [facts.Failed(scheduler.state.waiting[0])])
    for job in islice(jobs, DECISIONS):
        began = process_time()
        scheduler.step(3600.0, [facts.Queued(job)])
        times.append((process_time() - began) * 1e3)
        left = facts.Failed if job.id in scheduler.state.waiting else facts.Left
        scheduler.step(3600.0, [left(job.id)])
    return float(np.median(times))


def main() -> None:
    """Measure, and print both tables."""
    table = Table("policy", "1,000 jobs, s", f"with {WITH}, s", "times")
    for policy in POLICIES:
        replay_times_s(policy, 1)
        without, with_both = map(np.array, replay_times_s(policy, RUNS))
        times = np.median(with_both / without)
        table.add_row(policy, f"{np.median(without):.2f}", f"{np.median(with_both):.2f}", f"{times:.1f}")
    show(table)
    table = Table("policy", "rules", "none waits, ms", "500 wait, ms", "times")
    for rules in RULES:
        for policy in POLICIES:
            none, many = (decision_ms(f"{policy},{rules}", waiting) for waiting in (0, 500))
            table.add_row(policy, rules, f"{none:.3f}", f"{many:.3f}", f"{many / none:.1f}")
    show(table)


if __name__ == "__main__":
    main()
