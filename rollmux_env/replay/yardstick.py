"""The replay of a yardstick, a reference that no real system could run: it rearranges running jobs at every instant without cost.

Therefore no placements are logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.replay.job_results import job_results
from rollmux_env.replay.metrics import measure
from rollmux_env.replay.outcome import Outcome
from rollmux_env.replay.run import Arrivals
from rollmux_env.replay.stays import StayTimes
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.ticks import INSTANT_S


class ActiveJobs(Protocol):
    """Protocol of the current jobs of a yardstick's replay: which run, which wait, and the progress of each.

    Attributes:
        state: State with the jobs that have arrived, none of them placed. The columns of its job table with their progress are kept
            up to date for the metrics.
    """

    state: State

    def progress(self, seconds: float) -> None:
        """Advance every running job by a number of seconds."""

    def next_departure_s(self, now_s: float) -> float:
        """Return the time in seconds at which the next running job departs if nothing changes before, or infinity if none runs."""
        ...

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Remove the jobs whose stay ends by `until_s`, and return their ids."""
        ...

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Append jobs to the queue."""

    def serve(self, now_s: float) -> list[str]:
        """Rearrange the jobs, admit those at the head of the queue that fit, and return the ids of the admitted ones."""
        ...

    def strategy(self, job_id: str) -> str:
        """Return the strategy of a job that was just admitted, one of `rollmux_env.replay.metrics.STRATEGIES`."""
        ...

    def provisioned(self) -> Ints:
        """Return the number of nodes of each pool that are paid for now, shape (P,)."""
        ...

    def check(self) -> None:
        """Assert the invariants that hold after every instant.

        Raises:
            rollmux_env.errors.InvariantError: If one is broken.
        """


def replay_yardstick(scenario: Scenario, active: ActiveJobs, check: bool = False) -> Outcome:
    """Replay a scenario under a yardstick: jobs progress between events, and at each event the yardstick rearranges them.

    There is no event log. The times of arrivals, admissions and departures and the provisioned nodes are measured. `decision_s` has
    one entry per instant, and `migrations` is 0.

    Args:
        scenario: Scenario to replay.
        active: Jobs of this scenario, before any has arrived.
        check: Whether to call `active.check` after every instant.

    Raises:
        PlanError: If jobs wait while none runs and none will arrive.
    """
    arrivals = Arrivals(scenario)
    stays = StayTimes()
    time_s: list[float] = []
    nodes: dict[str, list[int]] = {name: [] for name in scenario.cluster.pools}
    waiting: list[int] = []
    decision_s: list[float] = []
    now_s = 0.0
    while len(stays.departed_s) < len(scenario.jobs):
        before_s = now_s
        now_s = max(min(arrivals.next_s, active.next_departure_s(before_s)), before_s)
        if now_s == np.inf:
            first = next(job_id for job_id in stays.arrived_s if job_id not in stays.admitted_s)
            raise PlanError(f"no place found for job {first}")
        until_s = now_s + INSTANT_S
        began = perf_counter()
        active.progress(now_s - before_s)
        stays.departed_s |= dict.fromkeys(active.leave(now_s, until_s), now_s)
        coming: list[Job] = []
        while arrivals.next_s <= until_s:
            coming.append(arrivals.next_job())
        active.arrive(coming, now_s)
        admitted = active.serve(now_s)  # one pass is enough, since arriving jobs are behind those that waited
        decision_s.append(perf_counter() - began)
        stays.arrived_s |= {job.id: now_s for job in coming}
        for job_id in admitted:
            stays.admitted_s[job_id] = now_s
            stays.admissions[active.strategy(job_id)] += 1
        time_s.append(now_s)
        waiting.append(len(stays.arrived_s) - len(stays.admitted_s))
        for counts, count in zip(nodes.values(), active.provisioned().tolist(), strict=True):
            counts.append(count)
        if check:
            active.check()
    jobs = job_results(scenario, active.state, stays, charged=False)
    measured = measure(scenario, active.state, stays, jobs, time_s, nodes)
    return Outcome(measured, time_s, nodes, decision_s, jobs=jobs, waiting=waiting)
