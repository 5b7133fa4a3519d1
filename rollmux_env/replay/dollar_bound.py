"""A certified lower bound of the dollars of a whole stream, from a linear program over time that HiGHS solves.

It holds for every policy that places jobs on their arrival and keeps every SLO at worst-case durations, however it groups, moves
and orders them. The program has, in every bucket of time, the node-hours of each pool and the work of each job:

- A job works between its arrival and the latest departure that its SLO allows, at its fastest rate at most. Each hour of work needs
  node-hours of both pools, so nodes are shared without loss.
- A pool has at least the nodes that the jobs need that are surely there: those of the widest one, and as many as hold all of them,
  with `max_group_size` jobs on a node and their host memory.

The dual of the program prices the node-hours of each bucket. Any prices give a lower bound, by a sum over the jobs that is computed
here exactly: an error of the solver makes the bound lower, never wrong.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, fsum, inf, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.portable import dot
from rollmux_env.replay.bounds import are_met, least_by_pool, needs_of, shape_needs
from rollmux_env.replay.outcome import Outcome
from rollmux_env.scenario import Scenario

Floats = NDArray[np.float64]
USD, USD_PER_WORK_HOUR = "stream_bound_usd", "stream_bound_usd_per_work_hour"
"""Names of the bounds among the figures that only some replays have."""
_COLUMNS = 20_000  # most pairs of a job and a bucket, which sets the length of buckets
_BUCKETS = 400
_PROGRAMS = 5  # most programs for a ratio, each at the best ratio of the one before
_ROUNDING = 1e-6  # relative tolerance, as for SLOs


class Stay(NamedTuple):
    """The least that a job needs while it is there.

    Attributes:
        arrival_h: Arrival, in hours.
        surely_h: Hours for which the job has a place in any case.
        most_h: Hours after which it has left, if its SLO is kept.
        least_work_h: Least work, in hours: iterations times T_solo.
        most_work_h: Most work, in hours.
        rate: Largest number of hours of work in an hour.
        use: Node-hours of an hour of work by shape and pool.
        nodes: Least number of nodes that the job holds by pool.
        memory_gb: Least host memory that the job keeps by pool, summed over its nodes, in GB.
    """

    arrival_h: float
    surely_h: float
    most_h: float
    least_work_h: float
    most_work_h: float
    rate: float
    use: tuple[tuple[float, ...], ...]
    nodes: tuple[float, ...]
    memory_gb: tuple[float, ...]


class StreamBound(NamedTuple):
    """Lower bounds of a stream.

    Attributes:
        usd: Lower bound of the cost, in $.
        usd_per_work_hour: Lower bound of the dollars per work-hour.
    """

    usd: float
    usd_per_work_hour: float


def bound_figures(outcome: Outcome, scenario: Scenario) -> dict[str, float | None]:
    """Return the bounds of a stream by name, None where they do not hold for a replay.

    They do not hold if a job waited, was parked, left over budget or broke its SLO, or if phases took less than the worst case.

    Args:
        outcome: Outcome of the replay.
        scenario: Scenario that was replayed.
    """
    metrics, jobs = outcome.metrics, outcome.jobs
    waits = metrics.wait_s or any(job.parks for job in jobs)
    if waits or metrics.slo_attainment < 1 or any(job.budget is not None for job in scenario.jobs):
        return {USD: None, USD_PER_WORK_HOUR: None}
    hours = np.diff(outcome.time_s) / 3600
    busy_s = [3600 * (metrics.utilization[name] or 0.0) * dot(hours, counts[:-1]) for name, counts in outcome.nodes.items()]
    needs = needs_of(scenario, {job.job: job.iterations for job in jobs})
    if not are_met(needs, [job.slowdown * job.iterations * job.t_solo_s for job in jobs], busy_s):
        return {USD: None, USD_PER_WORK_HOUR: None}
    bound = stream_bound(scenario)
    return {USD: bound.usd, USD_PER_WORK_HOUR: bound.usd_per_work_hour}


def stream_bound(scenario: Scenario) -> StreamBound:
    """Return lower bounds of the dollars, and of the dollars per work-hour, of a scenario."""
    cluster = scenario.cluster
    stays = tuple(_stay(job, cluster) for job in scenario.jobs)
    prices = tuple(pool.usd_per_node_hour for pool in cluster.pools.values())
    caps = tuple(inf if pool.node_memory_gb is None else pool.node_memory_gb for pool in cluster.pools.values())
    return _bound(stays, prices, caps, cluster.max_group_size)


def _stay(job: Job, cluster: Cluster) -> Stay:
    shapes = shape_needs(job, cluster)
    rate, arrival_h = job.solo_s / min(shape.iteration_s for shape in shapes), job.arrival_s / 3600
    uses = tuple(tuple(seconds / job.solo_s for seconds in shape.node_s) for shape in shapes)
    amounts = least_by_pool(shape.nodes for shape in shapes), least_by_pool(shape.memory_gb for shape in shapes)
    if job.iterations is None:
        hours = (job.duration_s or 0.0) / 3600
        return Stay(arrival_h, hours, hours, hours / job.slo * (1 - _ROUNDING), rate * hours, rate, uses, *amounts)
    work_h = job.iterations * job.solo_s / 3600
    most_h = max(job.slo * (1 + _ROUNDING), 1 / rate) * work_h
    return Stay(arrival_h, work_h / rate * (1 - _ROUNDING), most_h, work_h, work_h, rate, uses, *amounts)


@lru_cache(maxsize=8)
def _bound(stays: tuple[Stay, ...], prices: tuple[float, ...], caps: tuple[float, ...], max_group_size: int) -> StreamBound:
    """Return the bounds.

    Args:
        stays: Needs of the jobs.
        prices: Price of a node of each pool, in $/h.
        caps: Host memory of a node of each pool in GB, or infinity.
        max_group_size: Largest number of jobs in a group.
    """
    program = _Program(stays, np.array(prices), np.array(caps), max_group_size)
    node_prices = program.node_prices(0.0)
    usd = program.usd(node_prices, 0.0)
    work_h = fsum(stay.least_work_h for stay in stays)
    if all(stay.least_work_h == stay.most_work_h for stay in stays):
        return StreamBound(_lower(usd), _lower(usd / work_h))
    ratio = 0.0
    for _ in range(_PROGRAMS):  # Dinkelbach's method for the least ratio of dollars and work
        better = program.ratio(node_prices, max(prices) * max(sum(stay.nodes) + 1 for stay in stays))
        if better <= ratio * (1 + 1e-4):
            break
        ratio = better
        node_prices = program.node_prices(ratio)
    return StreamBound(_lower(usd), _lower(max(ratio, better)))


def _lower(value: float) -> float:
    """Return a value rounded down to six digits, which rounding of sums and other processors do not change."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (floor(log10(value)) - 5)
    return float(f"{floor(value * (1 - 1e-9) / unit) * unit:.6g}")


class _Program:
    """The linear program, with a column for the work of a job in a bucket in a shape, and one for the nodes of a pool in a bucket.

    Args:
        stays: Needs of the jobs.
        prices: Price of a node of each pool in $/h, shape (P,).
        caps: Host memory of a node of each pool in GB, shape (P,).
        max_group_size: Largest number of jobs in a group.
    """

    def __init__(self, stays: tuple[Stay, ...], prices: Floats, caps: Floats, max_group_size: int) -> None:
        self._stays, self._prices = stays, prices
        begin_h = min(stay.arrival_h for stay in stays)
        end_h = max(stay.arrival_h + stay.most_h for stay in stays)
        bucket_h = max(fsum(stay.most_h for stay in stays) / _COLUMNS, (end_h - begin_h) / _BUCKETS)
        self._edges_h = begin_h + bucket_h * np.arange(ceil((end_h - begin_h) / bucket_h) + 1)
        self._floors = self._least_node_hours(caps, max_group_size)
        self._buckets, self._most_h = zip(*map(self._columns, stays), strict=True)

    def _columns(self, stay: Stay) -> tuple[NDArray[np.int64], Floats]:
        """Return the buckets in which a job may work, and its most work in each, in hours."""
        until_h = stay.arrival_h + stay.most_h
        first, last = np.searchsorted(self._edges_h, (stay.arrival_h, until_h), side="right") - 1
        buckets = np.arange(first, min(last, len(self._edges_h) - 2) + 1)
        ends_h = np.minimum(self._edges_h[buckets + 1], until_h)
        return buckets, stay.rate * np.maximum(0.0, ends_h - np.maximum(self._edges_h[buckets], stay.arrival_h))

    def _least_node_hours(self, caps: Floats, max_group_size: int) -> Floats:
        """Return the least node-hours of each pool in each bucket, for the jobs that are surely there; shape (T, P)."""
        begins_h = np.array([stay.arrival_h for stay in self._stays])
        ends_h = begins_h + [stay.surely_h for stay in self._stays]
        nodes, memory = (np.array([getattr(stay, name) for stay in self._stays]) for name in ("nodes", "memory_gb"))
        times_h = np.unique(np.concatenate([begins_h, ends_h, self._edges_h[[0, -1]]]))
        counts = np.zeros((len(times_h) - 1, len(caps)))
        for k, at_h in enumerate(times_h[:-1]):
            here = (begins_h <= at_h) & (ends_h > at_h)
            if here.any():
                packed = np.maximum(nodes[here].sum(axis=0) / max_group_size, memory[here].sum(axis=0) / caps)
                counts[k] = np.maximum(nodes[here].max(axis=0), np.ceil(packed * (1 - _ROUNDING)))
        total = np.concatenate([np.zeros((1, len(caps))), np.cumsum(counts * np.diff(times_h)[:, None], axis=0)])
        at_edges = np.stack([np.interp(self._edges_h, times_h, total[:, p]) for p in range(len(caps))], axis=1)
        return np.maximum(0.0, np.diff(at_edges, axis=0))

    def node_prices(self, ratio: float) -> Floats:
        """Return the prices of node-hours by bucket and pool that are best for a ratio, in $; shape (T, P).

        Args:
            ratio: Dollars that an hour of work is worth; 0 for the least dollars.
        """
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        pools, every = len(self._prices), self._floors.size
        shapes = [(k, use) for k, stay in enumerate(self._stays) for use in stay.use]
        sizes = [len(self._buckets[k]) for k, _ in shapes]
        columns, jobs = sum(sizes), np.repeat([k for k, _ in shapes], sizes)
        buckets = np.concatenate([self._buckets[k] for k, _ in shapes])
        use = np.repeat(np.array([use for _, use in shapes]), sizes, axis=0)
        work, nodes = np.arange(columns), columns + np.arange(every)
        rows = np.concatenate([*(buckets * pools + p for p in range(pools)), np.arange(every)])
        values = np.concatenate([*use.T, -np.ones(every)])
        uses = coo_array((values, (rows, np.concatenate([np.tile(work, pools), nodes]))), shape=(every, columns + every))
        most = np.concatenate([np.concatenate([self._most_h[k] for k, _ in shapes]), np.full(every, inf)])
        done = coo_array((np.ones(columns), (jobs, work)), shape=(len(self._stays), columns + every)).tocsr()
        least, largest = (np.array([getattr(stay, name) for stay in self._stays]) for name in ("least_work_h", "most_work_h"))
        scale = self._prices.max() or 1.0
        cost = np.concatenate([np.full(columns, -ratio), np.tile(self._prices, len(self._floors))]) / scale
        solved = linprog(
            cost,
            A_ub=_stack([uses.tocsr(), done, -done]),
            b_ub=np.concatenate([self._floors.ravel(), largest * (1 + 1e-9), -least * (1 - 1e-9)]),
            bounds=np.stack([np.zeros(most.size), most], axis=1),
            method="highs",
        )
        if solved.status != 0 or not np.isfinite(solved.ineqlin.marginals).all():
            return np.tile(self._prices, (len(self._floors), 1))  # these are prices too, and the bound holds with any
        priced: Floats = np.clip(-scale * solved.ineqlin.marginals[:every].reshape(-1, pools), 0.0, self._prices)
        return priced

    def usd(self, node_prices: Floats, ratio: float) -> float:
        """Return the least dollars, less the worth of the work, with prices of node-hours as multipliers.

        Args:
            node_prices: Prices of node-hours by bucket and pool in $, from 0 to the pool's price, shape (T, P).
            ratio: Dollars that an hour of work is worth.
        """
        floors = fsum(((self._prices - node_prices) * self._floors).ravel().tolist())
        return floors + fsum(self._job_usd(k, node_prices, ratio) for k in range(len(self._stays)))

    def _job_usd(self, k: int, node_prices: Floats, ratio: float) -> float:
        """Return the least dollars of a job's work, less its worth: in its cheapest buckets and shapes first."""
        stay, most_h = self._stays[k], self._most_h[k]
        priced = node_prices[self._buckets[k]]
        per_hour = np.min([(priced * np.array(use)).sum(axis=1) for use in stay.use], axis=0) - ratio
        order = np.argsort(per_hour, kind="stable")
        before_h = np.concatenate([[0.0], np.cumsum(most_h[order])])[:-1]
        limit_h = np.where(per_hour[order] < 0, stay.most_work_h, stay.least_work_h)
        done_h = np.clip(limit_h - before_h, 0.0, most_h[order])
        return dot(done_h, per_hour[order])

    def ratio(self, node_prices: Floats, above: float) -> float:
        """Return the largest ratio of dollars and work at which no policy gains, by bisection.

        Args:
            node_prices: Prices of node-hours, as for `usd`.
            above: Ratio that is too large.
        """
        low, high = 0.0, above
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.usd(node_prices, middle) >= 0 else (low, middle)
        return low


def _stack(parts: list[object]) -> object:
    from scipy.sparse import vstack

    return vstack(parts, format="csr")


def over(outcome: Outcome, name: str, bound: str) -> float | None:
    """Return a figure over its bound, or None if the bound does not hold, was not asked for, or is 0.

    Args:
        outcome: Outcome of a replay.
        name: Name of the figure, `cost_usd` or `usd_per_work_hour`.
        bound: Name of its bound, `USD` or `USD_PER_WORK_HOUR`.
    """
    least = outcome.extra.get(bound)
    return getattr(outcome.metrics, name) / least if least else None
