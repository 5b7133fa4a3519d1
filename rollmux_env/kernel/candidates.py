"""Candidates of one job: every way to place it, evaluated.

The order is the paper's (Algorithm 1): groups in order of creation; in a group the job's shapes; of each 0, 1, ... new rollout
nodes; for each, the subsets of existing nodes in lexicographic order. Of several subsets that differ only in nodes with the same
pinned members, only the first is listed. The last rows are a new group, in each shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import (
    cycle_s,
    entry_limit,
    keeps_alone,
    one_after_the_other,
    rollout_memory_fits,
    shape_row,
    training_memory_fits,
    training_seconds,
    write_member,
    write_phases,
)
from rollmux_env.kernel.period import PHASES, add_warm_starts, exact_period, period_bound
from rollmux_env.kernel.pools import has_room, is_same, own_usd, rollout_usd
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Ints, Limits, Records, View

FEASIBLE, GROUP_FULL, FEW_TRAINING_NODES, ROLLOUT_MEMORY, TRAINING_MEMORY, MAX_NODES, SLO, OTHER_POOLS = range(8)

_BARRED = -2
ANY_NODES = -1  # in place of a number of new nodes: the group as a whole is out


def candidate_type(nodes: int) -> np.dtype[Any]:
    """Return the record type of one candidate of a job with at most `nodes` rollout nodes.

    The fields `period_s`, `limit_s` and `usd` are nan if the group as a whole is excluded.

    Fields:
        group: Row of the group, -1 for a new one.
        of_shape: Number of the job's shape.
        new_nodes: Rollout nodes to add, ANY_NODES if the group as a whole is excluded.
        reason: FEASIBLE, or the first reason against the candidate.
        usd: Marginal cost, $/h.
        period_s: Period of the group with the job in it, seconds.
        limit_s: Longest period that keeps all promises, seconds.
        nodes: (N,) numbers of the existing nodes, ascending, padded with -1.
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


class Subsets(NamedTuple):
    """Scratch to enumerate the subsets of a group's rollout nodes.

    Attributes:
        chosen: (n + 1,) positions of the nodes of the present subset, ascending.
        before: (N + 1,) for each node, the equivalent node that must be chosen first, as in `node_before`, or _BARRED.
    """

    chosen: Ints
    before: Ints


@compiled(arrays=False)
def is_saturated(group: Records) -> bool:
    """Return whether T_load is at least T_cycle, over the present members of a group record."""
    return bool(group.load_s >= group.cycle_s * (1.0 - TOLERANCE))


@compiled(arrays=False)
def complete(chosen: Ints, at: int, size: int, n_nodes: int, before: Ints) -> bool:
    """Fill chosen[at:size] with the lowest nodes allowed after chosen[:at]; return False if there are too few."""
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
    """Return whether node position v may follow chosen[:at].

    The equivalent nodes before it must be chosen too. A _BARRED node is never allowed.
    """
    w = before[v]
    if w < 0:
        return bool(w == -1)
    for k in range(at - 1, -1, -1):
        if chosen[k] <= w:
            return bool(chosen[k] == w)
    return False


@compiled(arrays=False)
def next_subset(chosen: Ints, size: int, n_nodes: int, before: Ints) -> bool:
    """Advance to the next subset in lexicographic order; return False at the end."""
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
    """Return the period of the group with the job as its last member, on the chosen node positions and on new nodes for the rest.

    If the period is above `limit`, a lower bound of it that is also above `limit` may be returned instead.
    """
    j, g = jobs[job], groups[group]
    bound = max(g.period_s, cycle_s(j, j.rollout_s, training_s, j.sync_s))
    bound = max(bound, g.training_load_s + training_s)
    for k in range(size):
        bound = max(bound, g.node_load_s[chosen[k]] + j.rollout_s)
    # A node with one pinned job is no constraint beyond that job's own period, so new nodes need no column.
    one_node_each = g.general == 0 and j.sync_s == 0.0 and j.rollout_nodes == 1
    n = g.n_members + 1
    two_in_turn = n == 2 and one_after_the_other(j) and one_after_the_other(jobs[g.members[0]])  # see `exact_period`
    starts = max(g.warm_s, max(j.rollout_warm_s, j.training_warm_s)) > 0.0
    if bound > limit or ((one_node_each or two_in_turn) and not starts):
        return float(bound)
    n_nodes = g.n_nodes
    pinned = np.zeros((n, n_nodes), np.int64)
    phases = np.empty((PHASES, n))
    for i in range(n - 1):
        write_member(jobs, groups, group, i, phases, pinned)
    write_phases(j, j.rollout_s, training_s, j.sync_s, phases, n - 1)
    for k in range(size):
        pinned[n - 1, chosen[k]] = 1
    if starts:
        add_warm_starts(phases, pinned, n, n_nodes)
    bound = period_bound(phases, pinned, n, n_nodes)
    return exact_period(phases, pinned, n, n_nodes, bound)


@compiled(arrays=False)
def bar_nodes(group: Records, job: Records, limits: Limits, limit_s: float, subsets: Subsets) -> None:
    """Exclude the nodes of a group that cannot take a job's rollouts.

    These are nodes without enough memory for the job, and nodes on which the rollouts would take more than `limit_s` in all. No
    subset with one of them is feasible. The group and the job are records.
    """
    for v in range(group.n_nodes):
        fits = rollout_memory_fits(group, v, job, limits) and group.node_load_s[v] + job.rollout_s <= limit_s
        subsets.before[v] = group.node_before[v] if fits else _BARRED


@compiled(arrays=False, inline=True)
def next_period(view: View, job: int, group: int, subsets: Subsets, size: int, first: bool, seconds: tuple[float, float]) -> float:
    """Advance to the next subset of a group's nodes on which a job keeps the group's period within a limit.

    Args:
        view: Tables of the cluster.
        job: Row of the job, or of one of its shapes.
        group: Row of the group.
        subsets: Scratch with the present subset; updated.
        size: Number of nodes in a subset.
        first: Whether to start with the first subset of this size.
        seconds: Seconds of the job's training in this group, and the longest period, seconds.

    Returns:
        The period, seconds; infinite if no such subset is left.
    """
    chosen, before, n_nodes = subsets.chosen, subsets.before, view.groups[group].n_nodes
    training_s, limit = seconds
    more = complete(chosen, 0, size, n_nodes, before) if first else next_subset(chosen, size, n_nodes, before)
    while more:
        period = period_with(view.jobs, view.groups, job, group, training_s, chosen, size, limit)
        if period <= limit:
            return float(period)
        more = next_subset(chosen, size, n_nodes, before)
    return np.inf


@compiled(arrays=False)
def _write(
    out: Records, at: int, group: int, shape: int, new_nodes: int, usd: float, seconds: tuple[float, float], reason: int
) -> None:
    """Write a row without existing nodes, if there is room for it."""
    if at >= len(out):
        return
    row = out[at]
    row.group = group
    row.of_shape = shape
    row.new_nodes = new_nodes
    row.usd = usd
    row.period_s, row.limit_s = seconds
    row.reason = reason
    for k in range(len(row.nodes)):
        row.nodes[k] = -1


@compiled(arrays=False)
def _write_nodes(out: Records, at: int, group: Records, subsets: Subsets, size: int) -> None:
    """Write which existing nodes a row has."""
    if at < len(out):
        for k in range(size):
            out[at].nodes[k] = group.node_number[subsets.chosen[k]]


@compiled(arrays=False)
def _group_reason(group: Records, job: Records, limits: Limits) -> int:
    """Return FEASIBLE, or the reason against a group as a whole; both are records."""
    if not is_same(group, job):
        return OTHER_POOLS
    if group.n_members >= limits.group_size_max or group.exclusive != 0:
        return GROUP_FULL
    if group.training_nodes < job.training_nodes:
        return FEW_TRAINING_NODES
    if not training_memory_fits(group, job, limits):
        return TRAINING_MEMORY
    return FEASIBLE


@compiled(arrays=False)
def _own_reason(view: View, job: Records) -> int:
    """Return FEASIBLE, or the reason against a new group for a job, a record."""
    if not has_room(job, job.rollout_nodes, job.training_nodes, view.limits, view.clock):
        return MAX_NODES
    return FEASIBLE if keeps_alone(job) else SLO


@compiled(arrays=False)
def _nodes_reason(view: View, group: Records, job: Records, subsets: Subsets, size: int) -> int:
    """Return FEASIBLE, or the reason against the chosen nodes and the new ones."""
    for i in range(size):
        if not rollout_memory_fits(group, subsets.chosen[i], job, view.limits):
            return ROLLOUT_MEMORY
    return FEASIBLE if has_room(group, job.rollout_nodes - size, 0, view.limits, view.clock) else MAX_NODES


@compiled(arrays=False, inline=True)
def _every_place(view: View, job: int, group: int, subsets: Subsets, out: Records, rows: int) -> int:
    """Write all places of a job, or of one of its shapes, in a group; returns how many rows there are then."""
    jobs, groups = view.jobs, view.groups
    j, g = jobs[job], groups[group]
    training_s = training_seconds(jobs, job, g.training_nodes)
    limit = entry_limit(jobs, j, g, 0) * (1.0 + TOLERANCE)
    for v in range(g.n_nodes):
        subsets.before[v] = g.node_before[v]
    for new in range(max(0, j.rollout_nodes - g.n_nodes), j.rollout_nodes + 1):
        size = j.rollout_nodes - new
        if new > 0 and j.warm_group == g.id:
            limit = entry_limit(jobs, j, g, new) * (1.0 + TOLERANCE)
        more = complete(subsets.chosen, 0, size, g.n_nodes, subsets.before)
        while more:
            reason = _nodes_reason(view, g, j, subsets, size)
            period = period_with(jobs, groups, job, group, training_s, subsets.chosen, size, np.inf)
            if reason == FEASIBLE and period > limit:
                reason = SLO
            usd = new * rollout_usd(g, view.limits)
            _write(out, rows, group, j.of_shape, new, usd, (period, limit / (1.0 + TOLERANCE)), reason)
            _write_nodes(out, rows, g, subsets, size)
            rows += 1
            more = next_subset(subsets.chosen, size, g.n_nodes, subsets.before)
    return rows


@compiled(arrays=False, inline=True)
def _cheaper_place(view: View, job: int, group: int, subsets: Subsets, best_usd: float, out: Records, rows: int) -> float:
    """Write the first of the cheapest places of a job, or of one of its shapes, in a group, if it costs less than `best_usd`.

    Returns the lower of the two costs.
    """
    g, j = view.groups[group], view.jobs[job]
    training_s = training_seconds(view.jobs, job, g.training_nodes)
    limit = entry_limit(view.jobs, j, g, 0) * (1.0 + TOLERANCE)
    if max(g.period_s, g.training_load_s + training_s) > limit:
        return best_usd
    bar_nodes(g, j, view.limits, limit, subsets)
    for new in range(max(0, j.rollout_nodes - g.n_nodes), j.rollout_nodes + 1):
        usd = new * rollout_usd(g, view.limits)
        if usd >= best_usd or not has_room(g, new, 0, view.limits, view.clock):
            break
        if new > 0 and j.warm_group == g.id:
            limit = entry_limit(view.jobs, j, g, new) * (1.0 + TOLERANCE)
        size = j.rollout_nodes - new
        period = next_period(view, job, group, subsets, size, True, (training_s, limit))
        if period < np.inf:
            _write(out, rows, group, j.of_shape, new, usd, (period, limit / (1.0 + TOLERANCE)), FEASIBLE)
            _write_nodes(out, rows, g, subsets, size)
            return float(usd)
    return best_usd


@compiled
def enumerate_candidates(view: View, job: int, only_improving: bool, prune: bool, out: Records) -> int:
    """Write the candidates of a job, a row each.

    Args:
        view: `order` says which groups are examined.
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
    best_usd = np.inf
    positions = np.empty(len(asks.pins) + 1 + len(groups[0].node_before), np.int64)
    subsets = Subsets(positions[: len(asks.pins) + 1], positions[len(asks.pins) + 1 :])
    for group in view.order:
        if best_usd <= 0.0 or group == asks.group or (only_improving and prune and is_saturated(groups[group])):
            continue
        for shape in range(1 + asks.more_shapes):
            row = shape_row(asks, job, shape)
            reason = _group_reason(groups[group], jobs[row], limits)
            if only_improving:
                usd = _cheaper_place(view, row, group, subsets, best_usd, out, rows) if reason == FEASIBLE else best_usd
                rows += usd < best_usd
                best_usd = usd
            elif reason == FEASIBLE:
                rows = _every_place(view, row, group, subsets, out, rows)
            else:
                _write(out, rows, group, shape, ANY_NODES, np.nan, (np.nan, np.nan), reason)
                rows += 1
    for shape in range(1 + asks.more_shapes):
        j = jobs[shape_row(asks, job, shape)]
        usd, reason = own_usd(j, limits), _own_reason(view, j)
        if not only_improving or (reason == FEASIBLE and usd < best_usd):
            _write(out, rows, NOWHERE, shape, j.rollout_nodes, usd, (j.alone_s, j.limit_s), reason)
            rows += 1
            best_usd = usd
    return rows
