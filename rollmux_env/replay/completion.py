"""Completion and waiting: when jobs are done, and how evenly they wait, as defined in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollmux_env.cluster.demand import nodes_asked
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario

V = TypeVar("V")
Shown = Annotated[V | None, Field(exclude_if=lambda value: value is None)]
"""Type of a figure that is left out of results if it is None."""

Floats = NDArray[np.float64]
_FAIR = 1 + 1e-9  # largest finish-time fairness of a job that has its share, apart from rounding


@dataclass(frozen=True, kw_only=True)
class JobCompletion:
    """Completion and waiting of a job, where nodes are limited or a job has waited; otherwise all are None.

    Attributes:
        completion_h: Time from arrival to departure, in hours.
        first_wait_h: Time from arrival to the first admission, in hours.
        queue_h: Time without a place, in hours.
        stretch: completion_h over the hours that the same iterations take alone.
        rho: Finish-time fairness: stretch over the mean, while the job was there, of the nodes that all present jobs asked for over
            those that there are, in the scarcest pool, at least 1. Above 1 the job was later than with an even share of the fleet.
        parks: Number of times that the job was parked.
    """

    completion_h: Shown[float] = None
    first_wait_h: Shown[float] = None
    queue_h: Shown[float] = None
    stretch: Shown[float] = None
    rho: Shown[float] = None
    parks: Shown[int] = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Completion and waiting of all jobs, where nodes are limited or a job has waited; otherwise all are None.

    Attributes:
        mean_completion_h: Mean of the jobs' completion_h, weighted by their `weight`, in hours.
        completion_p50_h: Median of completion_h by nearest rank, in hours.
        completion_p95_h: 95th percentile of completion_h by nearest rank, in hours.
        completion_p99_h: 99th percentile of completion_h by nearest rank, in hours.
        mean_queue_h: Mean of the jobs' queue_h, in hours.
        max_queue_h: Largest queue_h, in hours.
        mean_stretch: Mean of the jobs' stretch.
        stretch_p99: 99th percentile of stretch by nearest rank.
        worst_rho: Largest rho.
        unfair_share: Share of the jobs with a rho above 1.
        jain: Jain's index of the users' mean stretches: 1 if all are equal.
        worst_user: Largest mean stretch of a user's jobs.
        makespan_h: Time from the first arrival to the last departure, in hours.
        fleet_busy: Node-hours that groups held over those of the fleet by pool; None for a pool without `max_nodes`.
        parks: Number of times that jobs were parked.
        bound_completion_h: Lower bound of mean_completion_h of every policy (`rollmux_env.replay.bounds`), in hours; None where
            jobs may be faster than at the worst case.
    """

    mean_completion_h: Shown[float] = None
    completion_p50_h: Shown[float] = None
    completion_p95_h: Shown[float] = None
    completion_p99_h: Shown[float] = None
    mean_queue_h: Shown[float] = None
    max_queue_h: Shown[float] = None
    mean_stretch: Shown[float] = None
    stretch_p99: Shown[float] = None
    worst_rho: Shown[float] = None
    unfair_share: Shown[float] = None
    jain: Shown[float] = None
    worst_user: Shown[float] = None
    makespan_h: Shown[float] = None
    fleet_busy: Shown[dict[str, float | None]] = None
    parks: Shown[int] = None
    bound_completion_h: Shown[float] = None


@dataclass(frozen=True)
class Times:
    """Times of a job.

    Attributes:
        arrived_s: Time of the arrival, in seconds.
        admitted_s: Time of the first admission, in seconds.
        departed_s: Time of the departure, in seconds.
        away_s: Time without a place between the first admission and the departure, in seconds.
        parks: Number of times that the job was parked.
        work_s: Iterations done times T_solo, in seconds.
    """

    arrived_s: float
    admitted_s: float
    departed_s: float
    away_s: float
    parks: int
    work_s: float

    @property
    def completion_h(self) -> float:
        """Time from arrival to departure, in hours."""
        return (self.departed_s - self.arrived_s) / 3600

    @property
    def queue_h(self) -> float:
        """Time without a place, in hours."""
        return (self.admitted_s - self.arrived_s + self.away_s) / 3600


def job_completions(scenario: Scenario, times: Mapping[str, Times]) -> dict[str, JobCompletion]:
    """Return the completion and waiting of each job, by id."""
    demand = _Demand(scenario, times)
    completions = {}
    for job_id, own in times.items():
        stretch = (own.departed_s - own.arrived_s) / own.work_s
        completions[job_id] = JobCompletion(
            completion_h=own.completion_h,
            first_wait_h=(own.admitted_s - own.arrived_s) / 3600,
            queue_h=own.queue_h,
            stretch=stretch,
            rho=stretch / demand.mean(own.arrived_s, own.departed_s),
            parks=own.parks,
        )
    return completions


class _Demand:
    """The nodes that the present jobs ask for over those that there are, in the scarcest pool, at least 1, over time."""

    def __init__(self, scenario: Scenario, times: Mapping[str, Times]) -> None:
        limits = {name: pool.max_nodes for name, pool in scenario.cluster.pools.items() if pool.max_nodes is not None}
        changes: dict[float, Floats] = {}
        for job in scenario.jobs:
            asked = nodes_asked(job, scenario.cluster)
            shares = np.array([asked[name] / limit for name, limit in limits.items()])
            for at_s, sign in ((times[job.id].arrived_s, 1), (times[job.id].departed_s, -1)):
                changes[at_s] = changes.get(at_s, 0.0) + sign * shares
        self._at_s = np.array(sorted(changes))
        present = np.cumsum([changes[at_s] for at_s in self._at_s.tolist()], axis=0)
        self._scarcity = np.maximum(1.0, present.max(axis=1, initial=0.0))
        self._integral = np.concatenate(([0.0], np.cumsum(np.diff(self._at_s) * self._scarcity[:-1])))

    def mean(self, from_s: float, until_s: float) -> float:
        """Return the mean between the arrival and the departure of a job, in seconds."""
        first, last = np.searchsorted(self._at_s, (from_s, until_s))
        return float(self._integral[last] - self._integral[first]) / (until_s - from_s)


def completion_of(
    scenario: Scenario, jobs: Mapping[str, JobCompletion], node_s: Mapping[str, float], makespan_h: float, bound_h: float | None
) -> Completion:
    """Return the completion and waiting of all jobs.

    Args:
        scenario: Scenario that was replayed.
        jobs: Completion and waiting of each job, by id.
        node_s: Node-seconds held by groups, by pool.
        makespan_h: Time from the first arrival to the last departure, in hours.
        bound_h: Lower bound of the mean completion in hours, or None.
    """
    every = [jobs[job.id] for job in scenario.jobs]
    done_h, queue_h, stretch, rho = (
        [value or 0.0 for value in values]
        for values in zip(*((one.completion_h, one.queue_h, one.stretch, one.rho) for one in every), strict=True)
    )
    weights = [job.weight for job in scenario.jobs]
    users = _by_user(scenario.jobs, stretch)
    pools = scenario.cluster.pools
    return Completion(
        **hours_of(done_h, queue_h, weights),
        mean_stretch=fsum(stretch) / len(stretch),
        stretch_p99=nearest_rank(stretch, 99),
        worst_rho=max(rho),
        unfair_share=sum(value > _FAIR for value in rho) / len(rho),
        jain=jain_index(users),
        worst_user=max(users),
        makespan_h=makespan_h,
        fleet_busy={
            name: node_s[name] / (pool.max_nodes * 3600 * makespan_h) if pool.max_nodes else None for name, pool in pools.items()
        },
        parks=sum(one.parks or 0 for one in every),
        bound_completion_h=bound_h,
    )


def hours_of(completion_h: Sequence[float], queue_h: Sequence[float], weights: Sequence[float]) -> dict[str, float]:
    """Return the figures of `Completion` about hours of completion and of waiting.

    Args:
        completion_h: Time from arrival to departure of each job, in hours.
        queue_h: Time without a place of each job, in hours.
        weights: Weight of each job.
    """
    return {
        "mean_completion_h": fsum(weight * hours for weight, hours in zip(weights, completion_h, strict=True)) / fsum(weights),
        **{f"completion_p{percent}_h": nearest_rank(completion_h, percent) for percent in (50, 95, 99)},
        "mean_queue_h": fsum(queue_h) / len(queue_h),
        "max_queue_h": max(queue_h),
    }


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """Return a percentile of values by nearest rank: the smallest value that at least `percent` of the values do not exceed."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's index of values above 0: exactly 1 for a single one, and never above 1 from rounding."""
    total = fsum(values)
    return min(1.0, total * total / (len(values) * fsum(value * value for value in values)))  # `** 2` may round otherwise


def _by_user(jobs: Sequence[Job], stretches: Sequence[float]) -> list[float]:
    """Return the mean stretch of each user's jobs."""
    by_user: dict[str, list[float]] = {}
    for job, stretch in zip(jobs, stretches, strict=True):
        by_user.setdefault(job.user, []).append(stretch)
    return [fsum(values) / len(values) for values in by_user.values()]
