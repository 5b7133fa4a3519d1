"""Feasible groups of a set of jobs, enumerated.

Every subset of a feasible group is feasible on no more nodes and at no longer a period: leaving a member out replaces its arcs by
shorter ones, and the larger training pool may be kept. So the enumeration extends feasible groups only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import training_seconds
from rollmux_env.kernel.packing import Packing, least_period
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.pools import is_same
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints, Limits, Records


class Columns(NamedTuple):
    """Groups, a row each.

    Attributes:
        members: (rows, M) job rows, padded with -1. nodes: (rows, 2) rollout and training nodes. period_s: (rows,) seconds.
    """

    members: Ints
    nodes: Ints
    period_s: Floats


@compiled(arrays=False)
def load_members(jobs: Records, members: Ints, n: int, training_nodes: int, p: Packing) -> None:
    """Write the phases of the first `n` job rows in `members` into `p`, on a pool of that many training nodes."""
    for i in range(n):
        job = members[i]
        p.rollout_s[i] = jobs[job].rollout_s
        p.training_s[i] = training_seconds(jobs, job, training_nodes)
        if n > 1:  # every rollout as if on a shared node: which are is not known yet
            p.rollout_s[i] += jobs[job].rollout_warm_s
            p.training_s[i] += jobs[job].training_warm_s
        p.sync_s[i] = jobs[job].sync_s
        p.staleness[i] = jobs[job].staleness
        p.gb[i] = jobs[job].rollout_gb
        p.device_gb[i] = jobs[job].rollout_device_gb
        p.nodes[i] = jobs[job].rollout_nodes


@compiled(arrays=False)
def group_columns(
    jobs: Records, limits: Limits, members: Ints, n: int, all_periods: bool, p: Packing, columns: Columns, at: int
) -> int:
    """Feasible ways to run a set of jobs as one group: those that no other beats on rollout nodes, training nodes and period.

    Args:
        members: (>= n,) rows of the jobs.
        all_periods: else the period does not count: only those that no other beats on nodes are written, each at its least period.
        columns: out: nodes and periods are written from row `at` on.

    Returns:
        How many there are; where the arrays end, the rest are counted and not written.
    """
    lead = jobs[members[0]]
    rollout, training = limits.pools[lead.rollout_pool], limits.pools[lead.training_pool]
    limit = np.inf
    training_gb = 0.0
    training_device_gb = 0.0
    nodes_least = 0
    nodes_most = 0
    load = 0.0
    load_gb = 0.0
    load_device_gb = 0.0
    t = 0
    for i in range(n):
        job = members[i]
        if not is_same(jobs[job], lead):
            return 0
        limit = min(limit, jobs[job].limit_s)
        training_gb += jobs[job].training_gb
        training_device_gb += jobs[job].training_device_gb
        nodes = jobs[job].rollout_nodes
        nodes_least = max(nodes_least, nodes)
        nodes_most += nodes
        load += nodes * jobs[job].rollout_s
        load_gb += nodes * jobs[job].rollout_gb
        load_device_gb += nodes * jobs[job].rollout_device_gb
        t = max(t, jobs[job].training_nodes)
    if training_gb > training.node_gb * (1.0 + TOLERANCE):
        return 0
    if training_device_gb > training.device_gb * (1.0 + TOLERANCE):
        return 0
    nodes_least = max(nodes_least, int(np.ceil(load / limit - 1e-6)))
    if load_gb > 0.0:
        nodes_least = max(nodes_least, int(np.ceil(load_gb / rollout.node_gb - 1e-6)))
    if load_device_gb > 0.0:
        nodes_least = max(nodes_least, int(np.ceil(load_device_gb / rollout.device_gb - 1e-6)))
    nodes_out, period_out = columns.nodes, columns.period_s
    rows = nodes_out.shape[0]
    count = 0
    fewest = nodes_most + 1
    both = lead.rollout_pool == lead.training_pool
    while True:
        load_members(jobs, members, n, t, p)
        floor = 0.0
        trainings = 0.0
        for i in range(n):
            floor = max(floor, own_period(p.rollout_s[i], p.training_s[i], p.sync_s[i], p.staleness[i]))
            trainings += p.training_s[i]
        floor = max(floor, trainings)
        if floor <= limit * (1.0 + TOLERANCE):
            best_here = np.inf
            r = nodes_least
            while r <= min(nodes_most, rollout.nodes_max - (t if both else 0)) and (all_periods or r < fewest):
                period = least_period(p, n, r, rollout, limit)
                if period < best_here:
                    best_here = period
                    beaten = False
                    for k in range(at, min(at + count, rows)):
                        if nodes_out[k, 0] <= r and period_out[k] <= period:
                            beaten = True
                    if not beaten:
                        if at + count < rows:
                            nodes_out[at + count, 0] = r
                            nodes_out[at + count, 1] = t
                            period_out[at + count] = period
                        count += 1
                        fewest = min(fewest, r)
                    if period <= floor or not all_periods:
                        break
                r += 1
        larger = np.iinfo(np.int64).max
        for i in range(n):
            for k in range(jobs[0].rescale_nodes.shape[0]):
                if jobs[members[i]].rescale_nodes[k] > t:
                    larger = min(larger, jobs[members[i]].rescale_nodes[k])
                    break
        if larger == np.iinfo(np.int64).max or larger > training.nodes_max:
            return count
        t = larger


@compiled
def enumerate_groups(
    jobs: Records,
    limits: Limits,
    first: int,
    others: Ints,
    size_max: int,
    all_periods: bool,
    p: Packing,
    columns: Columns,
) -> int:
    """Columns of every feasible group of one job with some of the others.

    Args:
        first: row of the job that all groups hold. others: (J,) rows of the jobs that may join it.
        size_max: most members.
        all_periods: see `group_columns`.
        p: room for groups of that size.
        columns: out.

    Returns:
        How many columns there are. More than the arrays hold: they were left incomplete, and the count is only a lower bound.
    """
    members_out = columns.members
    rows = members_out.shape[0]
    members = np.empty(size_max, np.int64)
    following = np.zeros(size_max + 1, np.int64)  # of `others`, which may come next behind so many members
    members[0] = first
    size = 1
    count = 0
    new = True
    while size > 0:
        if new:
            new = False
            more = group_columns(jobs, limits, members, size, all_periods, p, columns, count)
            if count + more > rows:
                return count + more
            for k in range(count, count + more):
                for i in range(members_out.shape[1]):
                    members_out[k, i] = members[i] if i < size else -1
            count += more
            if more == 0:
                size -= 1
        elif size == size_max or following[size] == others.shape[0]:
            size -= 1
        else:
            members[size] = others[following[size]]
            following[size] += 1
            following[size + 1] = following[size]
            size += 1
            new = True
    return count
