"""Bounds that no policy can beat, from linear programs that HiGHS solves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, floor, fsum, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.demand import demand_of
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario

Floats = NDArray[np.float64]
# A bucket is an hour, and longer where the program would take minutes: for many jobs, and for jobs that wait or work for long.
_MAX_JOBS = 500
_MAX_JOB_HOURS = 40_000  # jobs times the hours that the scarcest pool is busy after the last arrival
_MAX_BUCKETS = 10_000  # with up to `_MAX_JOBS` jobs, and in proportion fewer with more
_MAX_COLUMNS = 200_000  # buckets in which a job works if it is done within 1.5 times its work, over all jobs
_PARTS = 1e6  # parts of an hour to which a bound is rounded down
_ROUNDING = 1 + 1e-6  # relative tolerance, as for SLOs
_ZERO = 1e-9  # smallest saving of a column that the program does not have yet


class Need(NamedTuple):
    """The least that a job needs, in whichever shape and however it shares nodes.

    Attributes:
        weight: Weight of the job.
        arrival_h: Arrival, in hours.
        work_h: Iterations times T_solo, in hours.
        rate: Largest number of hours of work in an hour: 1, unless the job is faster on other nodes.
        use: Node-hours of an hour of work by pool.
    """

    weight: float
    arrival_h: float
    work_h: float
    rate: float
    use: tuple[float, ...]


def needs_of(scenario: Scenario, done: Mapping[str, float]) -> tuple[Need, ...]:
    """Return the needs of a scenario's jobs.

    Args:
        scenario: Scenario with the jobs.
        done: Iterations of each job, by id.
    """
    return tuple(_need(job, scenario.cluster, round(done[job.id], 6)) for job in scenario.jobs)


class ShapeNeed(NamedTuple):
    """The least that a job needs in one of its shapes.

    Attributes:
        iteration_s: Shortest time of an iteration, in seconds.
        node_s: Node-seconds of an iteration by pool.
        nodes: Number of nodes that the job holds by pool.
        memory_gb: Host memory that the job keeps by pool, summed over its nodes, in GB.
    """

    iteration_s: float
    node_s: tuple[float, ...]
    nodes: tuple[float, ...]
    memory_gb: tuple[float, ...]


def shape_needs(job: Job, cluster: Cluster) -> list[ShapeNeed]:
    """Return the least needs of a job, shape by shape."""
    return [_shape_need(job, cluster, shape) for shape in job.shape_numbers]


def _shape_need(job: Job, cluster: Cluster, shape: int) -> ShapeNeed:
    demand = demand_of(job, cluster, shape)
    trainings = ((demand.training_nodes, demand.training_s), *demand.by_nodes)
    fewest = min(count for count, _ in trainings)
    node_s, nodes, memory_gb = (dict.fromkeys(cluster.pools, 0.0) for _ in range(3))
    node_s[demand.rollout_pool] += demand.rollout_nodes * demand.rollout_s
    node_s[demand.training_pool] += min(count * seconds for count, seconds in trainings)
    nodes[demand.rollout_pool] += demand.rollout_nodes
    nodes[demand.training_pool] += fewest
    memory_gb[demand.rollout_pool] += demand.rollout_nodes * demand.rollout_gb
    memory_gb[demand.training_pool] += fewest * demand.training_gb
    shortest_s = job.iteration_s(demand.rollout_s, min(seconds for _, seconds in trainings), job.sync_s)
    return ShapeNeed(shortest_s, *(tuple(amounts.values()) for amounts in (node_s, nodes, memory_gb)))


def least_by_pool(amounts: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the least amount of each pool over several shapes."""
    return tuple(map(min, zip(*amounts, strict=True)))


def _need(job: Job, cluster: Cluster, iterations: float) -> Need:
    shapes = shape_needs(job, cluster)
    use = tuple(seconds / job.solo_s for seconds in least_by_pool(shape.node_s for shape in shapes))
    rate = job.solo_s / min(shape.iteration_s for shape in shapes)
    return Need(job.weight, job.arrival_s / 3600, iterations * job.solo_s / 3600, rate, use)


def are_met(needs: Sequence[Need], stays_s: Sequence[float], busy_s: Sequence[float]) -> bool:
    """Return whether jobs needed as much in a replay as they need at least. Sampled durations and other nodes may take less.

    Args:
        needs: Needs of the jobs.
        stays_s: Time with a place of each job, in seconds.
        busy_s: Node-seconds of running phases of each pool.
    """
    late = all(3600 * need.work_h <= need.rate * stay_s * _ROUNDING for need, stay_s in zip(needs, stays_s, strict=True))
    used_s = (3600 * fsum(need.use[k] * need.work_h for need in needs) for k in range(len(busy_s)))
    return late and all(least_s <= pool_s * _ROUNDING for least_s, pool_s in zip(used_s, busy_s, strict=True))


@lru_cache(maxsize=16)
def bound_completion_h(needs: tuple[Need, ...], max_nodes: tuple[float, ...]) -> float:
    """Return a lower bound of the weighted mean completion of jobs on a fleet, in hours.

    A job is never done before half of its work after its mean busy time, which is the mean of the times at which its work is done.
    The linear program minimises the sum of the mean busy times: in every bucket of an hour each job works after its arrival at its
    rate at most, and each pool has at most its node-hours, so jobs share nodes without loss. Work counts at the beginning of its
    bucket. Where there are many jobs, or jobs that wait or work for long, buckets are longer, and the bound is lower. Where the
    jobs' work alone takes longer on average, or the program cannot be solved, that is the bound.

    Args:
        needs: Needs of the jobs.
        max_nodes: Largest number of nodes of each pool, or infinity.
    """
    weights = [need.weight for need in needs]
    shortest_h = [need.work_h / need.rate for need in needs]
    alone_h = _mean(weights, shortest_h)
    working = [need for need in needs if need.work_h > 0]  # the others, with fixed stays of a moment, are done as they arrive
    if all(nodes == inf for nodes in max_nodes) or not working:
        return _round_down(alone_h)
    program = _MeanBusyTimes(working, max_nodes)
    rest_h = [hours / 2 - need.arrival_h if hours else 0.0 for need, hours in zip(needs, shortest_h, strict=True)]
    return _round_down(max(alone_h, program.least_h() / fsum(weights) + _mean(weights, rest_h)))


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return fsum(weight * value for weight, value in zip(weights, values, strict=True)) / fsum(weights)


def _round_down(hours: float) -> float:
    return floor(hours * _PARTS) / _PARTS


class _MeanBusyTimes:
    """The linear program of the mean busy times, with a column for the work of a job in a bucket.

    It is solved with few columns first. Columns that would lower its value are added until none is left.
    """

    def __init__(self, needs: Sequence[Need], max_nodes: Sequence[float]) -> None:
        self._arrivals_h = np.array([need.arrival_h for need in needs])
        self._work_h = np.array([need.work_h for need in needs])
        self._rates = np.array([need.rate for need in needs])
        limited = [k for k, nodes in enumerate(max_nodes) if nodes < inf]
        self._use = np.array([[need.use[k] for k in limited] for need in needs])
        self._nodes = np.array([max_nodes[k] for k in limited])
        busy_h = (self._use * self._work_h[:, None]).sum(axis=0) / self._nodes
        late_h = max(0.0, float(busy_h.max() - np.ptp(self._arrivals_h)))
        shortest_h = self._work_h / self._rates
        last_h = float(self._arrivals_h.max() + shortest_h.max() + busy_h.sum())
        groups = ceil(len(needs) / _MAX_JOBS)
        self._bucket_h = max(
            groups,
            ceil(len(needs) * late_h / _MAX_JOB_HOURS),
            ceil((last_h - float(self._arrivals_h.min())) * groups / _MAX_BUCKETS),
            ceil(1.5 * float(shortest_h.sum()) / _MAX_COLUMNS),
        )
        self._begins_h = self._bucket_h * np.arange(
            floor(self._arrivals_h.min() / self._bucket_h), ceil(last_h / self._bucket_h) + 1
        )
        # Cost of an hour of work in each bucket, shape (J, B).
        self._cost = np.array([need.weight for need in needs])[:, None] * self._begins_h / self._work_h[:, None]

    def least_h(self) -> float:
        """Return the least sum of weighted mean busy times in hours, or -infinity where HiGHS does not find it."""
        from scipy.optimize import linprog

        ends_h = self._begins_h + self._bucket_h
        possible = ends_h > self._arrivals_h[:, None]
        late_h = self._arrivals_h + 1.5 * self._work_h / self._rates + 12 * self._bucket_h
        columns = possible & (self._begins_h <= late_h[:, None])
        while True:
            jobs, buckets = np.nonzero(columns)
            most_h = self._rates[jobs] * np.minimum(self._bucket_h, ends_h[buckets] - self._arrivals_h[jobs])
            costs = np.concatenate([self._cost[jobs, buckets], self._cost[:, -1]])  # at last, work that no bucket holds
            bounds = np.stack([np.zeros(costs.size), np.concatenate([most_h, np.full(len(self._work_h), inf)])], axis=1)
            uses, limits, does = self._rows(jobs, buckets)
            solved = linprog(costs, A_ub=uses, b_ub=limits, A_eq=does, b_eq=self._work_h, bounds=bounds, method="highs")
            if not solved.success:  # weights and work may be of too different sizes for it
                return -inf
            prices = solved.ineqlin.marginals.reshape(-1, self._nodes.size)
            worth = sum(np.multiply.outer(self._use[:, k], prices[:, k]) for k in range(self._nodes.size))
            saves = solved.eqlin.marginals[:, None] + worth - self._cost
            missing = possible & ~columns & (saves > _ZERO)
            if not missing.any():
                return float(solved.fun)
            columns |= missing & (saves >= self._hundredth(np.where(missing, saves, 0.0)))

    def _rows(self, jobs: NDArray[np.int64], buckets: NDArray[np.int64]) -> tuple[object, Floats, object]:
        """Return the rows of the pools' node-hours with their limits, and the rows of the jobs' work."""
        from scipy.sparse import coo_array

        number, pools, every = jobs.size, self._nodes.size, len(self._work_h)
        rows = np.concatenate([buckets * pools + k for k in range(pools)])
        node_hours = np.concatenate([self._use[jobs, k] for k in range(pools)])
        shape = self._begins_h.size * pools, number + every
        uses = coo_array((node_hours, (rows, np.tile(np.arange(number), pools))), shape=shape)
        owners = np.concatenate([jobs, np.arange(every)])
        does = coo_array((np.ones(number + every), (owners, np.arange(number + every))), shape=(every, number + every))
        return uses.tocsr(), np.tile(self._bucket_h * self._nodes, self._begins_h.size), does.tocsr()

    def _hundredth(self, saves: Floats) -> Floats:
        """Return the hundredth largest saving of each job, shape (J, 1)."""
        most = min(100, saves.shape[1])
        return np.maximum(np.partition(saves, -most, axis=1)[:, -most], _ZERO)[:, None]
