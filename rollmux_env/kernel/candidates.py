"""Candidates of one job: every way to place it, evaluated.

The order is the paper's (Algorithm 1): groups in order of creation; in a group 0, 1, ... new rollout nodes; for each, the subsets
of existing nodes in lexicographic order. Of subsets that differ only in nodes with the same pinned members the first stands for
all. The last row is a new group.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.membership import node_positions, training_seconds
from rollmux_env.kernel.period import exact_period, period_bound
from rollmux_env.kernel.tables import TOLERANCE, Floats, GroupTable, Ints, JobTable, Limits

FEASIBLE, GROUP_FULL, FEW_TRAINING_NODES, ROLLOUT_MEMORY, TRAINING_MEMORY, MAX_NODES, SLO = range(7)

_BARRED = -2
ANY_NODES = -1  # in place of a number of new nodes: the group as a whole is out


@uncounted
def is_saturated(groups: GroupTable, group: int) -> bool:
    """T_load >= T_cycle, over the group's present members."""
    return bool(groups.load_s[group] >= groups.cycle_s[group] * (1.0 - TOLERANCE))


@uncounted
def complete(chosen: Ints, at: int, size: int, n_nodes: int, before: Ints) -> bool:
    """Fill chosen[at:size] with the lowest nodes allowed after chosen[:at]; False where there are too few."""
    v = chosen[at - 1] + 1 if at > 0 else 0
    while at < size:
        while v < n_nodes and not _allowed(chosen, at, v, before):
            v += 1
        if v == n_nodes:
            return False
        chosen[at] = v
        at += 1
        v += 1
    return True


@uncounted
def _allowed(chosen: Ints, at: int, v: int, before: Ints) -> bool:
    """Whether node position v may follow chosen[:at]: the nodes like it that come before it must be chosen too; _BARRED never."""
    w = before[v]
    if w < 0:
        return bool(w == -1)
    for k in range(at - 1, -1, -1):
        if chosen[k] <= w:
            return bool(chosen[k] == w)
    return False


@uncounted
def next_subset(chosen: Ints, size: int, n_nodes: int, before: Ints) -> bool:
    """Advance to the next subset in lexicographic order; False at the end."""
    for at in range(size - 1, -1, -1):
        for v in range(chosen[at] + 1, n_nodes - (size - at) + 1):
            if _allowed(chosen, at, v, before):
                chosen[at] = v
                if complete(chosen, at + 1, size, n_nodes, before):
                    return True
    return False


@compiled
def period_with(
    jobs: JobTable, groups: GroupTable, job: int, group: int, training_s: float, chosen: Ints, size: int, limit: float
) -> float:
    """Period of the group with the job as its last member, on the chosen node positions and on new nodes of its own.

    Where the period is above `limit` a lower bound of it, also above `limit`, may be returned instead.
    """
    bound = max(groups.period_s[group], jobs.rollout_s[job] + training_s + jobs.sync_s[job])
    bound = max(bound, groups.training_load_s[group] + training_s)
    for k in range(size):
        bound = max(bound, groups.node_load_s[group, chosen[k]] + jobs.rollout_s[job])
    # A node with one pinned job is no constraint beyond that job's own cycle, so new nodes need no column.
    one_node_each = groups.general[group] == 0 and jobs.sync_s[job] == 0.0 and jobs.rollout_nodes[job] == 1
    n = groups.n_members[group] + 1
    if one_node_each or n == 2 or bound > limit:  # of two members, see `exact_period`
        return float(bound)
    n_nodes = groups.n_nodes[group]
    pinned = np.zeros((n, n_nodes), np.int64)
    phases = np.empty((3, n))
    for i in range(n - 1):
        member = groups.members[group, i]
        phases[0, i] = jobs.placed_rollout_s[member]
        phases[1, i] = jobs.placed_training_s[member]
        phases[2, i] = jobs.placed_sync_s[member]
        node_positions(jobs, groups, member, group, pinned[i])
    phases[0, n - 1] = jobs.rollout_s[job]
    phases[1, n - 1] = training_s
    phases[2, n - 1] = jobs.sync_s[job]
    for k in range(size):
        pinned[n - 1, chosen[k]] = 1
    bound = period_bound(phases[0], phases[1], phases[2], pinned, n, n_nodes)
    return exact_period(phases[0], phases[1], phases[2], pinned, n, n_nodes, bound)


@compiled
def enumerate_candidates(
    jobs: JobTable,
    groups: GroupTable,
    order: Ints,
    limits: Limits,
    rollout_nodes_in_use: int,
    training_nodes_in_use: int,
    job: int,
    only_improving: bool,
    prune: bool,
    group_of: Ints,
    new_nodes: Ints,
    chosen_nodes: Ints,
    usd: Floats,
    period_s: Floats,
    reason: Ints,
) -> int:
    """Write the candidates of a job, a row each.

    Args:
        order: (groups,) rows of the groups in order of creation.
        rollout_nodes_in_use, training_nodes_in_use: provisioned nodes of the whole cluster.
        job: row of a job that waits or runs; its own group is left out.
        only_improving: write a row only where it is feasible and strictly cheaper than all rows before it, so that the last row
            is Algorithm 1's choice; else write them all, for a group that is out as a whole a single row.
        prune: leave saturated groups out (only with `only_improving`).
        group_of: (R,) out: row of the group, -1 for a new one.
        new_nodes: (R,) out: rollout nodes to add, ANY_NODES where the group as a whole is out.
        chosen_nodes: (R, N) out: numbers of the existing nodes, ascending, padded with -1.
        usd: (R,) out: marginal cost, $/h.
        period_s: (R,) out: period of the group with the job in it, seconds; nan where the group as a whole is out.
        reason: (R,) out: FEASIBLE, or the first reason against it.

    Returns:
        How many rows there are; where that is above R, only the first R are written.
    """
    return int(
        _enumerate(
            jobs,
            groups,
            order,
            limits,
            rollout_nodes_in_use,
            training_nodes_in_use,
            job,
            only_improving,
            prune,
            group_of,
            new_nodes,
            chosen_nodes,
            usd,
            period_s,
            reason,
            np.zeros(jobs.rollout_nodes[job] + 1, np.int64),
            np.empty(groups.node_before.shape[1], np.int64),
        )
    )


@uncounted
def _enumerate(
    jobs: JobTable,
    groups: GroupTable,
    order: Ints,
    limits: Limits,
    rollout_nodes_in_use: int,
    training_nodes_in_use: int,
    job: int,
    only_improving: bool,
    prune: bool,
    group_of: Ints,
    new_nodes: Ints,
    chosen_nodes: Ints,
    usd: Floats,
    period_s: Floats,
    reason: Ints,
    chosen: Ints,
    barred: Ints,
) -> int:
    """As `enumerate_candidates`, with room for positions of a job's nodes and for a group's `node_before`."""
    rows = 0
    room = group_of.shape[0]
    best = np.inf
    n = jobs.rollout_nodes[job]
    for position in range(order.shape[0]):
        if only_improving and best <= 0.0:
            break
        group = order[position]
        if group == jobs.group[job]:
            continue
        if only_improving and prune and is_saturated(groups, group):
            continue
        out = FEASIBLE
        if groups.n_members[group] >= limits.group_size_max or groups.exclusive[group] != 0:
            out = GROUP_FULL
        elif groups.training_nodes[group] < jobs.training_nodes[job]:
            out = FEW_TRAINING_NODES
        elif groups.training_gb[group] + jobs.training_gb[job] > limits.training_node_gb * (1.0 + TOLERANCE):
            out = TRAINING_MEMORY
        if out != FEASIBLE:
            if not only_improving:
                if rows < room:
                    group_of[rows] = group
                    new_nodes[rows] = ANY_NODES
                    chosen_nodes[rows, :] = -1
                    usd[rows] = np.nan
                    period_s[rows] = np.nan
                    reason[rows] = out
                rows += 1
            continue
        training_s = training_seconds(jobs, job, groups.training_nodes[group])
        limit = min(groups.limit_s[group], jobs.limit_s[job]) * (1.0 + TOLERANCE)
        if only_improving and max(groups.period_s[group], groups.training_load_s[group] + training_s) > limit:
            continue
        n_nodes = groups.n_nodes[group]
        before = groups.node_before[group]
        if only_improving:  # no subset with such a node is feasible, so none need be tried
            for v in range(n_nodes):
                barred[v] = before[v]
                full = groups.node_gb[group, v] + jobs.rollout_gb[job] > limits.rollout_node_gb * (1.0 + TOLERANCE)
                if full or groups.node_load_s[group, v] + jobs.rollout_s[job] > limit:
                    barred[v] = _BARRED
            before = barred
        found = False
        for k in range(max(0, n - n_nodes), n + 1):
            cost = k * limits.rollout_usd
            if only_improving and (found or cost >= best):
                break
            size = n - k
            if not complete(chosen, 0, size, n_nodes, before):
                continue
            while True:
                out = MAX_NODES if k > 0 and rollout_nodes_in_use + k > limits.rollout_nodes_max else FEASIBLE
                for i in range(size):
                    if groups.node_gb[group, chosen[i]] + jobs.rollout_gb[job] > limits.rollout_node_gb * (1.0 + TOLERANCE):
                        out = ROLLOUT_MEMORY
                        break
                if not only_improving or out == FEASIBLE:
                    period = period_with(jobs, groups, job, group, training_s, chosen, size, limit if only_improving else np.inf)
                    if out == FEASIBLE and period > limit:
                        out = SLO
                    if not only_improving or out == FEASIBLE:
                        if rows < room:
                            group_of[rows] = group
                            new_nodes[rows] = k
                            chosen_nodes[rows, :] = -1
                            for i in range(size):
                                chosen_nodes[rows, i] = groups.node_number[group, chosen[i]]
                            usd[rows] = cost
                            period_s[rows] = period
                            reason[rows] = out
                        rows += 1
                    if only_improving and out == FEASIBLE:
                        best = cost
                        found = True
                        break
                if not next_subset(chosen, size, n_nodes, before):
                    break
    cost = n * limits.rollout_usd + jobs.training_nodes[job] * limits.training_usd
    fits = (
        rollout_nodes_in_use + n <= limits.rollout_nodes_max
        and training_nodes_in_use + jobs.training_nodes[job] <= limits.training_nodes_max
    )
    if not only_improving or (fits and cost < best):
        if rows < room:
            group_of[rows] = -1
            new_nodes[rows] = n
            chosen_nodes[rows, :] = -1
            usd[rows] = cost
            period_s[rows] = jobs.solo_s[job]
            reason[rows] = FEASIBLE if fits else MAX_NODES
        rows += 1
    return rows
