"""Error of the expected times of waiting jobs, and the cost of computing them.

    python benchmarks/expected_times.py [--seeds 5] [--jobs 200] [--share 0.7] [--policy rollmux] [--queue 300 5000]

The production stream runs on `--share` of the nodes that it takes at its peak without a limit, so that jobs wait. When a job
arrives and has to wait, its expected time is computed (`rollmux_env.scheduler.preview`). The error is the distance of its admission
from that time. In event replays, jobs take drawn durations, which the forecast does not know. A tenth of the jobs has priority 1
and overtakes the others. Every figure is the mean over seeds, with the smallest and the largest value. The second table is about
`--queue` jobs that arrive at once on 60 rollout and 40 training nodes; its times are medians of five, in seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import NamedTuple

import numpy as np
from rich.table import Table

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.bench.streams import with_actual
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived
from rollmux_env.cluster.state import State
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.run import Run
from rollmux_env.report.tables import show
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.preview import forecast_arrivals, forecast_jobs
from rollmux_env.workloads import WorkloadOptions, make_workload

CASES = ("fluid", "worst cases", "drawn durations", "drawn durations, priorities")
MEAN, CV = 0.8, 0.2  # of drawn durations: mean relative to the worst case, and coefficient of variation


class WaitFigures(NamedTuple):
    """Figures of one replay.

    Attributes:
        waited: Number of jobs that waited.
        wait_h: Median wait, in hours.
        error_h: Median error of the expected time, in hours.
        error_percent: Median error relative to the wait, in percent.
        forecast_ms: Median time to compute a forecast, in milliseconds.
    """

    waited: float
    wait_h: float
    error_h: float
    error_percent: float
    forecast_ms: float


def stream(case: str, seed: int, jobs: int, share: float, policy: str) -> Scenario:
    """Return the jobs of a case on fewer nodes than they would take.

    Args:
        case: One of `CASES`.
        seed: Seed of the stream.
        jobs: Number of jobs.
        share: Fraction of the nodes that the jobs take at their peak without a limit.
        policy: Name of the placement policy.
    """
    scenario = make_workload("production", WorkloadOptions(seed=seed, jobs=jobs))
    free = replay(scenario, make_runnable(policy))
    most = {
        name: max(int(share * max(free.nodes[name])), max(getattr(job, name).nodes for job in scenario.jobs))
        for name in scenario.cluster.pools
    }
    pools = {name: pool.model_copy(update={"max_nodes": most[name]}) for name, pool in scenario.cluster.pools.items()}
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update=pools)})
    if case.startswith("drawn"):
        scenario = with_actual(scenario, MEAN, CV)
    if case.endswith("priorities"):
        first = np.random.default_rng(seed).random(jobs) < 0.1
        changed = [job.model_copy(update={"priority": int(one)}) for job, one in zip(scenario.jobs, first, strict=True)]
        scenario = scenario.model_copy(update={"jobs": tuple(changed)})
    return scenario


def expected(run: Run, observed: bool, policy: str) -> Iterator[tuple[str, float, float]]:
    """Yield, for each job that waits: its id, its expected time as computed at its arrival, and the time to compute it.

    Args:
        run: Replay of the stream.
        observed: Whether the replay had drawn durations.
        policy: Name of the placement policy.
    """
    state = State(run.scenario.cluster, observed)
    coming: list[str] = []
    for event, following in zip(run.log, [*run.log[1:], None], strict=True):
        apply(state, event)
        if isinstance(event, Arrived):
            coming.append(event.job.id)
        if coming and (following is None or following.at_s > event.at_s):
            began = perf_counter()
            forecasts = forecast_jobs(state, make_runnable(policy), instants=10_000).waiting
            views = {job_id: view.eta_s for job_id, view in forecasts.items()}
            took_s = perf_counter() - began
            for job_id in coming:
                if job_id in views:
                    eta_s = views[job_id]
                    assert eta_s is not None
                    yield job_id, eta_s, took_s
            coming = []


def figures(case: str, seed: int, jobs: int, share: float, policy: str) -> WaitFigures:
    """Replay one stream, compute the forecasts, and return the figures."""
    scenario = stream(case, seed, jobs, share, policy)
    observed = case != "fluid"
    make = make_runnable(policy)
    run = replay_events(scenario, make, make_dispatch("round-robin"), seed) if observed else replay(scenario, make)
    came = {event.job.id: event.at_s for event in run.log if isinstance(event, Arrived)}
    placed = {event.job_id: event.at_s for event in run.log if isinstance(event, Admitted)}
    asked = [*expected(run, observed, policy)]
    waits_s = np.array([placed[job_id] - came[job_id] for job_id, _, _ in asked])
    errors_s = np.array([abs(eta_s - placed[job_id]) for job_id, eta_s, _ in asked])
    ms = 1e3 * float(np.median([took_s for _, _, took_s in asked]))
    percent = 100 * float(np.median(errors_s / waits_s))
    return WaitFigures(len(asked), float(np.median(waits_s)) / 3600, float(np.median(errors_s)) / 3600, percent, ms)


def cost(jobs: int, policy: str) -> tuple[str, ...]:
    """Return a table row with the time to compute forecasts while many jobs wait."""
    scenario = make_workload("production", WorkloadOptions(jobs=jobs))
    most = {"rollout": 60, "training": 40}
    pools = {name: pool.model_copy(update={"max_nodes": most[name]}) for name, pool in scenario.cluster.pools.items()}
    state, make = State(scenario.cluster.model_copy(update=pools)), make_runnable(policy)
    Scheduler(state, make).step(0.0, [facts.Queued(job.model_copy(update={"arrival_s": 0.0})) for job in scenario.jobs])
    known = sum(view.eta_s is not None for view in forecast_jobs(state, make).waiting.values())
    new = scenario.jobs[0].model_copy(update={"id": "new"})
    asks: tuple[Callable[[], object], ...] = (
        lambda: forecast_jobs(state, make),
        lambda: forecast_jobs(state, make, instants=0),
        lambda: forecast_arrivals(state, make, new),
    )
    times = []
    for ask in asks:
        runs = []
        for _ in range(5):
            began = perf_counter()
            ask()
            runs.append(perf_counter() - began)
        times.append(f"{np.median(runs):.3f}")
    return (f"{jobs - len(state.waiting):,}", f"{len(state.waiting):,}", f"{known:,}", *times)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="The error of the expected times of waiting jobs.")
    parser.add_argument("--seeds", type=int, default=5, help="how many streams")
    parser.add_argument("--jobs", type=int, default=200, help="of a stream")
    parser.add_argument("--share", type=float, default=0.7, help="of the nodes that the stream takes at its peak without a limit")
    parser.add_argument("--policy", default="rollmux", help="placement policy")
    parser.add_argument("--queue", type=int, nargs="*", default=[300, 5000], help="jobs that come at once")
    asked = parser.parse_args()
    if asked.seeds:
        show(errors(asked))
    costs = Table(
        "jobs that run", "that wait", "with a time", "all expected times, s", "reasons alone, s", "a preview, s", title=asked.policy
    )
    for jobs in asked.queue:
        costs.add_row(*cost(jobs, asked.policy))
    show(costs)


def errors(asked: argparse.Namespace) -> Table:
    """Return the first table."""
    title = f"production, {asked.jobs} jobs on {100 * asked.share:.0f}% of the nodes, {asked.policy}, seeds 0-{asked.seeds - 1}"
    table = Table(
        "replay", "jobs that waited", "median wait, h", "median error, h", "of the wait, %", "a forecast, ms", title=title
    )
    for case in CASES:
        rows = [figures(case, seed, asked.jobs, asked.share, asked.policy) for seed in range(asked.seeds)]
        cells = []
        for values, digits in zip(zip(*rows, strict=True), (0, 1, 2, 1, 0), strict=True):
            cells.append(f"{np.mean(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})")
        table.add_row(case, *cells)
    return table


if __name__ == "__main__":
    main()
