"""The replay of a yardstick: running jobs are arranged anew for free at every instant, so no job has a placement to log."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.replay.metrics import Outcome, Stays, job_results, measure
from rollmux_env.replay.run import Arrivals
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.planner import INSTANT_S


class ActiveJobs(Protocol):
    """The jobs of a yardstick's replay: who runs, who waits, and how far each is.

    Attributes:
        state: it knows the jobs that have arrived and places none of them; the columns of its job table that say how far a job is
            are kept, for the metrics.
    """

    state: State

    def progress(self, seconds: float) -> None:
        """Let every running job do its iterations of so many seconds."""

    def next_departure_s(self, now_s: float) -> float:
        """When the next running job leaves if nothing changes before; infinite where none runs."""
        ...

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Take out the jobs whose stay ends by `until_s`; returns their ids."""
        ...

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Let jobs join the end of the queue."""

    def serve(self, now_s: float) -> list[str]:
        """Arrange the jobs anew, and admit from the head of the queue whoever fits; returns the ids of the admitted."""
        ...

    def strategy(self, job_id: str) -> str:
        """How a job that was just admitted came in; one of `rollmux_env.replay.metrics.STRATEGIES`."""
        ...

    def provisioned(self) -> Ints:
        """(P,) nodes of each pool paid for now."""
        ...

    def check(self) -> None:
        """Assert what must hold after every instant.

        Raises:
            rollmux_env.errors.InvariantError: it does not.
        """


def replay_yardstick(scenario: Scenario, active: ActiveJobs, check: bool = False) -> Outcome:
    """Replay a scenario: between events jobs progress as the yardstick says; at each it arranges them anew.

    There is no event log: what is measured are the times of arrivals, admissions and departures, and the nodes provisioned.
    `decision_s` has one entry an instant, and `migrations` is 0.

    Args:
        active: of this scenario, before anybody has arrived.
        check: call `active.check` after every instant.

    Raises:
        PlanError: jobs wait though nobody runs and nobody will arrive.
    """
    arrivals = Arrivals(scenario)
    stays = Stays()
    time_s: list[float] = []
    nodes: dict[str, list[int]] = {name: [] for name in scenario.cluster.pools}
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
            coming.append(arrivals.take())
        active.arrive(coming, now_s)
        admitted = active.serve(now_s)  # one pass over the queue is enough: who comes now stands behind whoever waited
        decision_s.append(perf_counter() - began)
        stays.arrived_s |= {job.id: now_s for job in coming}
        for job_id in admitted:
            stays.admitted_s[job_id] = now_s
            stays.admissions[active.strategy(job_id)] += 1
        time_s.append(now_s)
        for counts, count in zip(nodes.values(), active.provisioned().tolist(), strict=True):
            counts.append(count)
        if check:
            active.check()
    measured = measure(scenario, active.state, stays, time_s, nodes)
    return Outcome(measured, time_s, nodes, decision_s, jobs=job_results(scenario, active.state, stays, charged=False))
