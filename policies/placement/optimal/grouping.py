"""The best grouping of the active jobs, in dollars per hour or dollars per work-hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from policies.placement.optimal.columns import ColumnPool
from policies.placement.optimal.partition import Partition, partition
from policies.placement.optimal.program import TOLERANCE, Program
from rollmux_env.kernel.tables import Floats, Ints

Objective = Literal["usd", "work"]
Before = tuple[list[int], Ints]
"""An earlier group: rows of its members, and its rollout and training nodes, shape (2,)."""


@dataclass(frozen=True)
class Grouping:
    """A partition of the active jobs into feasible groups.

    Attributes:
        columns: Columns of the pool, one for each group, shape (G,).
        value: Value of the objective, $/h or $ per work-hour.
        bound: Lower bound of the objective over all groupings, equal to `value` if the grouping is proven optimal.
        usd_per_hour: Price of the groups' nodes, $/h.
        bound_usd_per_hour: Price at `bound` in $/h; for $ per work-hour, the price of the same amount of work.
    """

    columns: Ints
    value: float
    bound: float
    usd_per_hour: float
    bound_usd_per_hour: float


NOTHING = Grouping(np.zeros(0, np.int64), 0.0, 0.0, 0.0, 0.0)
"""The grouping of no jobs."""


def best_grouping(
    pool: ColumnPool, objective: Objective, node_limit: int | None = None, before: list[Before] | None = None
) -> Grouping | None:
    """Find the best grouping of a pool's active jobs.

    Args:
        pool: Feasible groups of the active jobs.
        objective: `usd` for $/h, `work` for $ per work-hour.
        node_limit: Largest number of branch-and-bound nodes of an integer program, or None. If it is reached, `bound` is below
            `value`.
        before: Groups of an earlier grouping, or None. Without the jobs that left, and with each new job alone, it is the answer if
            the node limit leaves nothing better.

    Returns:
        The best grouping, or None if `max_nodes` allows none or a node limit left none found.
    """
    limits = pool.state.limits
    program = Program(
        pool.positions(pool.members),
        len(pool.active),
        pool.nodes,
        pool.pools,
        limits.pools["nodes_max"],
        limits.pools["usd"] if objective == "usd" else None,
    )
    cost = pool.usd_per_hour()
    fallback = _fallback(pool, program, cost, before or [])
    if objective == "usd":
        best = partition(program, cost, node_limit, fallback)
        if best is None:
            return None
        bound = best.bound if pool.complete else min(best.value, _least_usd_per_hour(pool))
        return Grouping(best.columns, best.value, bound, best.value, bound)
    work = pool.work_rate()
    ratio = _least_ratio(pool, program, cost, work, node_limit, fallback)
    if ratio is None:
        return None
    best, value, bound = ratio
    bound = bound if pool.complete else min(value, _least_usd_per_work_hour(pool))
    done = float(work[best.columns].sum())
    return Grouping(best.columns, value, bound, float(cost[best.columns].sum()), bound * done)


def _least_ratio(
    pool: ColumnPool, program: Program, cost: Floats, work: Floats, node_limit: int | None, fallback: Ints | None
) -> tuple[Partition, float, float] | None:
    """Minimise the sum of cost over the sum of work by Dinkelbach's method: minimise cost - ratio * work until that is 0.

    Returns:
        The partition, its ratio and a lower bound of the ratio, or None if no partition was found.
    """
    start = fallback if fallback is not None else np.arange(cost.size)
    ratio = float(cost[start].sum() / work[start].sum())
    while True:
        best = partition(program, cost - ratio * work, node_limit, fallback)
        if best is None:
            return None
        fallback = best.columns
        usd = float(cost[best.columns].sum())
        value = usd / float(work[best.columns].sum())
        if abs(best.value) <= TOLERANCE * max(1.0, usd):
            break
        ratio = value
    if best.bound >= best.value:
        return best, value, value
    # For every grouping cost - ratio * work >= bound, and its work is at least what the SLOs require.
    jobs = pool.state.tables.jobs
    least_work = float((jobs.solo_s[pool.active] / jobs.limit_s[pool.active]).sum())
    return best, value, max(0.0, min(value, ratio + min(0.0, best.bound) / least_work))


def _fallback(pool: ColumnPool, program: Program, cost: Floats, before: list[Before]) -> Ints | None:
    active = set(pool.active)
    groups = [(members, nodes) for group, nodes in before if (members := [row for row in group if row in active])]
    placed = {row for group, _ in groups for row in group}
    groups += [([row], np.full(2, np.iinfo(np.int64).max)) for row in sorted(active - placed)]
    chosen: list[int] = []
    for group, nodes in groups:
        ways = pool.find(group)
        ways = ways[(pool.nodes[ways] <= nodes).all(axis=1)]
        if ways.size == 0:
            return None
        chosen.append(int(ways[np.argmin(cost[ways])]))
    columns = np.array(sorted(chosen), dtype=np.int64)
    fits = (program.counts[columns].sum(axis=0) <= program.counts_max).all()
    return columns if fits else None


def _least_usd(pool: ColumnPool) -> Floats:
    """Return the lowest price of one iteration of each of A active jobs, its node-seconds times $/h per node, shape (A,)."""
    of_jobs = [pool.choices(row) for row in pool.active]
    jobs, rows = pool.state.tables.jobs, [row for rows in of_jobs for row in rows]
    rollout = jobs.rollout_nodes[rows] * jobs.rollout_s[rows]
    steps = np.where(jobs.rescale_s[rows] > 0, jobs.rescale_nodes[rows] * jobs.rescale_s[rows], np.inf)
    training = np.minimum(jobs.training_nodes[rows] * jobs.training_s[rows], steps.min(axis=1, initial=np.inf))
    prices = pool.state.limits.pools["usd"]
    usd = rollout * prices[jobs.rollout_pool[rows]] + training * prices[jobs.training_pool[rows]]
    return np.minimum.reduceat(usd, np.cumsum([0, *(len(own) for own in of_jobs)])[:-1])


def _least_usd_per_hour(pool: ColumnPool) -> float:
    """Return a bound that needs no groups: each job fills its nodes for its node-seconds in the longest period its SLO allows."""
    return float((_least_usd(pool) / pool.state.tables.jobs.limit_s[pool.active]).sum() * (1 - TOLERANCE))


def _least_usd_per_work_hour(pool: ColumnPool) -> float:
    """Return a bound that needs no groups: the lowest ratio, over all jobs, of an iteration's price to T_solo."""
    return float((_least_usd(pool) / pool.state.tables.jobs.solo_s[pool.active]).min() * (1 - TOLERANCE))
