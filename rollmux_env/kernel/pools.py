"""Prices of nodes, and the room of a cluster for more of them. A group has one pool on each side, often two different ones."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import ROLLOUT, TRAINING, Clock, Ints, Limits, Records, View

_EXACT = 1 + 1e-6  # an SLO that is just kept is kept


@compiled(arrays=False)
def rollout_usd(record: Records, limits: Limits) -> float:
    """Return the price of a rollout node of a record, a job or a group, $/h."""
    return float(limits.pools[record.rollout_pool].usd)


@compiled(arrays=False)
def own_usd(job: Records, limits: Limits) -> float:
    """Return the price of the nodes that a job, a record, asks for, $/h."""
    pools = limits.pools
    return float(job.rollout_nodes * pools[job.rollout_pool].usd + job.training_nodes * pools[job.training_pool].usd)


@compiled(arrays=False)
def nodes_usd(record: Records, rollout: int, training: int, limits: Limits) -> float:
    """Return the price of a number of rollout and training nodes of the pools of a record, a job or a group, $/h."""
    pools = limits.pools
    return float(rollout * pools[record.rollout_pool].usd + training * pools[record.training_pool].usd)


@compiled(arrays=False)
def price_ratio(jobs: Records, group: Records, limits: Limits) -> float:
    """Return the price of a group's nodes over that of its members' own nodes; the group is a record."""
    own = 0.0
    for i in range(group.n_members):
        own += own_usd(jobs[group.members[i]], limits)
    usd = nodes_usd(group, group.n_nodes, group.training_nodes, limits)
    return float(usd / own if own > 0.0 else 0.0)


@compiled(arrays=False)
def provisioned_usd(nodes: Ints, limits: Limits) -> float:
    """Return the price of (P, 2) nodes of all pools, $/h."""
    usd = 0.0
    for p in range(len(nodes)):
        usd += (nodes[p, ROLLOUT] + nodes[p, TRAINING]) * limits.pools[p].usd
    return usd


@compiled(arrays=False)
def penalty_usd(view: View) -> float:
    """Return the penalty for missed SLOs as RollMux's authors count it, $/h.

    The cost of a group is multiplied by the slowdown, in its steady period, of the worst member that misses its SLO. The simulator
    of the authors charges this to `random` and `most-idle` (github.com/wutianyuan1/ROLL at 66a06bba,
    `global_scheduler/weave_scheduler.py`, `per_time_cost`), and section 6.5 of the paper compares it with its optimum.
    """
    usd = 0.0
    for k in range(len(view.order)):
        group = view.groups[view.order[k]]
        worst = 1.0
        for i in range(group.n_members):
            job = view.jobs[group.members[i]]
            if group.period_s > job.limit_s * _EXACT:
                worst = max(worst, group.period_s / job.solo_s)
        usd += (worst - 1.0) * nodes_usd(group, group.n_nodes, group.training_nodes, view.limits)
    return usd


def count_nodes(limits: Limits, records: Records, rollout_nodes: Ints) -> Ints:
    """Return (P, 2) nodes of each pool, for rollouts and for trainings, of records with the given numbers of rollout nodes."""
    nodes = np.zeros((limits.pools.size, 2), dtype=np.int64)
    np.add.at(nodes[:, ROLLOUT], records["rollout_pool"], rollout_nodes)
    np.add.at(nodes[:, TRAINING], records["training_pool"], records["training_nodes"])
    return nodes


@compiled(arrays=False)
def nodes_of(nodes: Ints, side: int) -> int:
    """Return the sum of (P, 2) nodes over all pools, on one side."""
    count = 0
    for p in range(len(nodes)):
        count += nodes[p, side]
    return int(count)


@compiled(arrays=False)
def nodes_of_pool(nodes: Ints, pool: int) -> int:
    """Return the sum of (P, 2) nodes over both sides, for one pool."""
    return int(nodes[pool, ROLLOUT] + nodes[pool, TRAINING])


@compiled(arrays=False)
def is_same(one: Records, other: Records) -> bool:
    """Return whether two records, jobs or groups, have the same pools on both sides."""
    return bool(one.rollout_pool == other.rollout_pool and one.training_pool == other.training_pool)


@compiled(arrays=False)
def has_room(record: Records, rollout: int, training: int, limits: Limits, clock: Clock) -> bool:
    """Return whether the pools of a record, a job or a group, have room for `rollout` and `training` more nodes."""
    p, q = record.rollout_pool, record.training_pool
    pools, nodes = limits.pools, clock.nodes
    if p == q:
        more = rollout + training
        return bool(more == 0 or nodes[p, ROLLOUT] + nodes[p, TRAINING] + more <= pools[p].nodes_max)
    enough = rollout == 0 or nodes[p, ROLLOUT] + nodes[p, TRAINING] + rollout <= pools[p].nodes_max
    return bool(enough and (training == 0 or nodes[q, ROLLOUT] + nodes[q, TRAINING] + training <= pools[q].nodes_max))


@compiled(arrays=False)
def are_within(nodes: Ints, limits: Limits) -> bool:
    """Return whether (P, 2) nodes can be provisioned at once."""
    fits = True
    for p in range(len(nodes)):
        fits = fits and nodes[p, ROLLOUT] + nodes[p, TRAINING] <= limits.pools[p].nodes_max
    return bool(fits)


@compiled(arrays=False)
def is_unlimited(limits: Limits) -> bool:
    """Return whether no pool has a `max_nodes`."""
    least = np.inf
    for p in range(len(limits.pools)):
        least = min(least, limits.pools[p].nodes_max)
    return bool(least == np.inf)
