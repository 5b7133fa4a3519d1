"""Candidates of one job: every way to place it, evaluated.

The order is the paper's (Algorithm 1): groups in order of creation; in a group the job's shapes; of each 0, 1, ... new rollout
nodes; for each, the subsets of existing nodes in lexicographic order. Of subsets that differ only in nodes with the same pinned
members the first stands for all. The last rows are a new group, in each shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import (
    entry_limit,
    keeps_alone,
    node_positions,
    rollout_memory_fits,
    shape_row,
    training_memory_fits,
    training_seconds,
    write_phases,
)
from rollmux_env.kernel.period import PHASES, add_warm_starts, exact_period, own_period, period_bound
from rollmux_env.kernel.pools import has_room, is_same, own_usd, rollout_usd
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Ints, Limits, Records, View

FEASIBLE, GROUP_FULL, FEW_TRAINING_NODES, ROLLOUT_MEMORY, TRAINING_MEMORY, MAX_NODES, SLO, OTHER_POOLS = range(8)

_BARRED = -2
ANY_NODES = -1  # in place of a number of new nodes: the group as a whole is out


def candidate_type(nodes: int) -> np.dtype[Any]:
    """One candidate of a job with at most so many rollout nodes.

    group: row of the group, -1 for a new one. of_shape: number of the job's shape. new_nodes: rollout nodes to add, ANY_NODES where
    the group as a whole is out. nodes: (N,) numbers of the existing nodes, ascending, padded with -1. usd: marginal cost, $/h.
    period_s: of the group with the job in it, seconds; limit_s: longest that keeps what was promised; all three nan where the group
    as a whole is out. reason: FEASIBLE, or the first reason against it.
    """
    return np.dtype(
        [
            ("group", "i8"),
            ("of_shape", "i8"),
            ("new_nodes", "i8"),
            ("reason", "i8"),
            ("usd", "f8"),
            ("period_s", "f8"),
            ("limit_s", "f8"),
            ("nodes", "i8", (nodes,)),
        ]
    )


@compiled(arrays=False)
def is_saturated(group: Records) -> bool:
    """T_load >= T_cycle, over the present members of a group, a record."""
    return bool(group.load_s >= group.cycle_s * (1.0 - TOLERANCE))


@compiled(arrays=False)
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


@compiled(arrays=False)
def _allowed(chosen: Ints, at: int, v: int, before: Ints) -> bool:
    """Whether node position v may follow chosen[:at]: the nodes like it that come before it must be chosen too; _BARRED never."""
    w = before[v]
    if w < 0:
        return bool(w == -1)
    for k in range(at - 1, -1, -1):
        if chosen[k] <= w:
            return bool(chosen[k] == w)
    return False


@compiled(arrays=False)
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
    jobs: Records, groups: Records, job: int, group: int, training_s: float, chosen: Ints, size: int, limit: float
) -> float:
    """Period of the group with the job as its last member, on the chosen node positions and on new nodes of its own.

    Where the period is above `limit` a lower bound of it, also above `limit`, may be returned instead.
    """
    j, g = jobs[job], groups[group]
    bound = max(g.period_s, own_period(j.rollout_s, training_s, j.sync_s, j.staleness))
    bound = max(bound, g.training_load_s + training_s)
    for k in range(size):
        bound = max(bound, g.node_load_s[chosen[k]] + j.rollout_s)
    # A node with one pinned job is no constraint beyond that job's own period, so new nodes need no column.
    one_node_each = g.general == 0 and j.sync_s == 0.0 and j.rollout_nodes == 1
    n = g.n_members + 1
    two_on_policy = n == 2 and j.staleness == 0.0 and jobs[g.members[0]].staleness == 0.0  # see `exact_period`
    starts = max(g.warm_s, max(j.rollout_warm_s, j.training_warm_s)) > 0.0
    if bound > limit or ((one_node_each or two_on_policy) and not starts):
        return float(bound)
    n_nodes = g.n_nodes
    pinned = np.zeros((n, n_nodes), np.int64)
    phases = np.empty((PHASES, n))
    for i in range(n - 1):
        member = g.members[i]
        write_phases(jobs, member, phases, i)
        node_positions(jobs, groups, member, group, pinned[i])
    write_phases(jobs, job, phases, n - 1)
    phases[0, n - 1] = j.rollout_s
    phases[1, n - 1] = training_s
    phases[2, n - 1] = j.sync_s
    for k in range(size):
        pinned[n - 1, chosen[k]] = 1
    if starts:
        add_warm_starts(phases, pinned, n, n_nodes)
    bound = period_bound(phases, pinned, n, n_nodes)
    return exact_period(phases, pinned, n, n_nodes, bound)


@compiled(arrays=False)
def _write(row: Records, group: int, shape: int, new_nodes: int, usd: float, seconds: tuple[float, float], reason: int) -> None:
    row.group = group
    row.of_shape = shape
    row.new_nodes = new_nodes
    row.usd = usd
    row.period_s, row.limit_s = seconds
    row.reason = reason
    for k in range(row.nodes.shape[0]):
        row.nodes[k] = -1


@compiled(arrays=False)
def _group_reason(group: Records, job: Records, limits: Limits) -> int:
    """FEASIBLE, or what speaks against a group as a whole; both are records."""
    if not is_same(group, job):
        return OTHER_POOLS
    if group.n_members >= limits.group_size_max or group.exclusive != 0:
        return GROUP_FULL
    if group.training_nodes < job.training_nodes:
        return FEW_TRAINING_NODES
    if not training_memory_fits(group, job, limits):
        return TRAINING_MEMORY
    return FEASIBLE


@compiled
def enumerate_candidates(view: View, job: int, only_improving: bool, prune: bool, out: Records) -> int:
    """Write the candidates of a job, a row each.

    Args:
        view: `order` says which groups are looked at.
        job: row of a job that waits or runs, in every shape that it has; its own group is left out.
        only_improving: write a row only where it is feasible and strictly cheaper than all rows before it, so that the last row
            is Algorithm 1's choice; else write them all, for a group that is out as a whole a single row.
        prune: leave saturated groups out (only with `only_improving`).
        out: (R,) records of `candidate_type`.

    Returns:
        How many rows there are; where that is above R, only the first R are written.
    """
    jobs, groups, limits = view.jobs, view.groups, view.limits
    asks = jobs[job]
    rows = 0
    room = out.shape[0]
    best = np.inf
    scratch = np.empty(asks.pins.shape[0] + 1 + groups[0].node_before.shape[0], np.int64)
    chosen, before = scratch[: asks.pins.shape[0] + 1], scratch[asks.pins.shape[0] + 1 :]
    for position in range(view.order.shape[0]):
        if only_improving and best <= 0.0:
            break
        group = view.order[position]
        if group == asks.group or (only_improving and prune and is_saturated(groups[group])):
            continue
        g = groups[group]
        for shape in range(1 + asks.more_shapes):
            if only_improving and best <= 0.0:
                break
            row = shape_row(asks, job, shape)
            j = jobs[row]
            n = j.rollout_nodes
            reason = _group_reason(g, j, limits)
            if reason != FEASIBLE:
                if not only_improving:
                    if rows < room:
                        _write(out[rows], group, shape, ANY_NODES, np.nan, (np.nan, np.nan), reason)
                    rows += 1
                continue
            training_s = training_seconds(jobs, row, g.training_nodes)
            limit = entry_limit(jobs, j, g, 0) * (1.0 + TOLERANCE)
            if only_improving and max(g.period_s, g.training_load_s + training_s) > limit:
                continue
            n_nodes = g.n_nodes
            for v in range(n_nodes):
                full = not rollout_memory_fits(g, v, j, limits)
                # No subset with such a node is feasible, so none need be tried.
                barred = only_improving and (full or g.node_load_s[v] + j.rollout_s > limit)
                before[v] = _BARRED if barred else g.node_before[v]
            has_feasible = False
            for k in range(max(0, n - n_nodes), n + 1):
                usd = k * rollout_usd(g, limits)
                if only_improving and (has_feasible or usd >= best):
                    break
                if k > 0 and j.warm_group == g.id:
                    limit = entry_limit(jobs, j, g, k) * (1.0 + TOLERANCE)
                size = n - k
                more = complete(chosen, 0, size, n_nodes, before)
                while more:
                    reason = FEASIBLE if has_room(g, k, 0, limits, view.clock) else MAX_NODES
                    for i in range(size):
                        if not rollout_memory_fits(g, chosen[i], j, limits):
                            reason = ROLLOUT_MEMORY
                            break
                    if not only_improving or reason == FEASIBLE:
                        longest = limit if only_improving else np.inf
                        period = period_with(jobs, groups, row, group, training_s, chosen, size, longest)
                        if reason == FEASIBLE and period > limit:
                            reason = SLO
                        if not only_improving or reason == FEASIBLE:
                            if rows < room:
                                _write(out[rows], group, shape, k, usd, (period, limit / (1.0 + TOLERANCE)), reason)
                                for i in range(size):
                                    out[rows].nodes[i] = g.node_number[chosen[i]]
                            rows += 1
                        if only_improving and reason == FEASIBLE:
                            best = usd
                            has_feasible = True
                            break
                    more = next_subset(chosen, size, n_nodes, before)
    for shape in range(1 + asks.more_shapes):
        j = jobs[shape_row(asks, job, shape)]
        n = j.rollout_nodes
        usd = own_usd(j, limits)
        reason = FEASIBLE
        if not has_room(j, n, j.training_nodes, limits, view.clock):
            reason = MAX_NODES
        elif not keeps_alone(j):
            reason = SLO
        if not only_improving or (reason == FEASIBLE and usd < best):
            if rows < room:
                _write(out[rows], NOWHERE, shape, n, usd, (j.alone_s, j.limit_s), reason)
            rows += 1
            best = min(best, usd)
    return rows
