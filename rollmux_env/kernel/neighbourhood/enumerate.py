"""Moves of running jobs that are looked at after an event: single moves, exchanges, and mergers.

    move      a job goes to its best place in another group, or to a group of its own, or gets another shape where it is
    exchange  a job takes the place of one of another group, which goes to the first one's group (a swap), or to its best place in
              any third group, or to a group of its own
    merger    all members of a small group go elsewhere one after the other, the longest T_solo first, each to its best place

The best place is the one that costs least at the shortest horizon (`net_usd`), in whichever shape of the job. A row's gain is what
the groups that it changes cost less, minus its price: the nodes that the movers leave are paid for until their pauses end.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import may_pause, shape_row
from rollmux_env.kernel.neighbourhood.exchange import offer_exchanges
from rollmux_env.kernel.neighbourhood.insertion import best_place, copy_group, place_alone
from rollmux_env.kernel.neighbourhood.merge import offer_merger
from rollmux_env.kernel.neighbourhood.table import (
    JOBS_MOST,
    MOVE,
    MOVES_MOST,
    NEW_GROUP,
    Scratch,
    add_move,
    begin_row,
    change_group,
    clear_unused_moves,
    falls_short,
    keep_group,
    leave_nodes,
    offer,
    price_of,
)
from rollmux_env.kernel.pools import nodes_usd, own_usd
from rollmux_env.kernel.tables import NOWHERE, Ints, Records, View
from rollmux_env.kernel.valuation import Valuation, iterations_done, net_usd, value_now


@compiled
def choose_groups(view: View, out: Ints) -> int:
    """Choose the groups that are looked at: all, or where there are more than `out` takes, first those that changed at this time,
    then those with the highest price for their members' own nodes; ties go to the older one.

    Args:
        out: (F,) out: their rows, in order of creation.

    Returns:
        How many.
    """
    jobs, order, limits = view.jobs, view.order, view.limits
    n = order.shape[0]
    most = out.shape[0]
    if n <= most:
        for k in range(n):
            out[k] = order[k]
        return int(n)
    dear = np.empty(n)
    for k in range(n):
        group = view.groups[order[k]]
        own = 0.0
        for i in range(group.n_members):
            job = jobs[group.members[i]]
            own += own_usd(job, limits)
        usd = nodes_usd(group, group.n_nodes, group.training_nodes, limits)
        dear[k] = np.inf if group.since_s == view.clock.now_s else (usd / own if own > 0.0 else 0.0)
    chosen = np.zeros(n, np.int64)
    for _ in range(most):
        best = -1
        for k in range(n):
            if chosen[k] == 0 and (best < 0 or dear[k] > dear[best]):
                best = k
        chosen[best] = 1
    at = 0
    for k in range(n):
        if chosen[k] == 1:
            out[at] = order[k]
            at += 1
    return int(at)


@compiled(arrays=False)
def _may_move(view: View, migration_s: float, row: int) -> bool:
    """Whether a running job may be moved: it can be, and neither was placed or moved in this instant nor is in a pause."""
    job, now_s = view.jobs[row], view.clock.now_s
    if job.movable == 0 or job.admitted_s >= now_s or job.paused_until_s >= now_s:
        return False
    done = iterations_done(view.jobs, view.groups, row, now_s)
    return may_pause(now_s - job.admitted_s, migration_s, job.limit_s, done)


@compiled(arrays=False)
def _prepare(view: View, valuation: Valuation, scratch: Scratch) -> int:
    """Value the groups, with and without each job that may move; returns how many there are."""
    jobs, groups, copies = view.jobs, view.groups, scratch.copies
    other = View(jobs, copies, view.order, view.limits, view.clock)
    migration_h = valuation.terms[0].migration_h
    first = groups.shape[0]
    m = 0
    for f in range(view.order.shape[0]):
        group = view.order[f]
        value_now(view, valuation, group, scratch.base[f])
        if groups[group].exclusive != 0:
            continue
        for i in range(groups[group].n_members):
            job = groups[group].members[i]
            if m == JOBS_MOST or not _may_move(view, migration_h * 3600.0, job):
                continue
            scratch.movers[m] = job
            for shape in range(1 + jobs[job].more_shapes):
                valuation.stays[shape_row(jobs[job], job, shape)] = valuation.stays[job]
            scratch.home[m] = f
            copy = first + m
            copy_group(jobs, groups, group, job, copies, copy)
            scratch.freed[m, 0] = groups[group].n_nodes - copies[copy].n_nodes
            scratch.freed[m, 1] = 0
            if copies[copy].n_members == 0:
                scratch.freed[m, 1] = groups[group].training_nodes
                for k in range(scratch.cut.shape[1]):
                    scratch.cut[m, k] = 0.0
            else:
                value_now(other, valuation, copy, scratch.cut[m])
            saved = net_usd(scratch.base[f]) - net_usd(scratch.cut[m])
            scratch.saved[m] = saved - price_of(scratch, jobs[job], view.limits, migration_h, m)
            m += 1
    return m


@compiled(arrays=False)
def _single_moves(view: View, valuation: Valuation, m: int, scratch: Scratch) -> None:
    """Find the best place of every job in every other group, in its own in another shape, and in a new one, and offer those."""
    jobs, groups, looked = view.jobs, view.groups, view.order
    cut = View(jobs, scratch.copies, looked, view.limits, view.clock)
    migration_h = valuation.terms[0].migration_h
    for k in range(m):
        job, a = scratch.movers[k], scratch.home[k]
        saved = scratch.saved[k]
        alone, now = scratch.alone[k], jobs[job].of_shape
        several = groups[looked[a]].n_members > 1
        place_alone(view, valuation, job, NOWHERE if several else now, alone)
        for b in range(looked.shape[0]):
            place = scratch.joins[k, b]
            if b == a:
                best_place(cut, valuation, groups.shape[0] + k, job, now, scratch.cut[k], place)
            else:
                best_place(view, valuation, looked[b], job, NOWHERE, scratch.base[b], place)
            if place.ok == 1 and not falls_short(scratch, saved - place.usd):
                _move(view, migration_h, k, b, place, scratch)
        if alone.ok == 1 and not falls_short(scratch, saved - alone.usd):
            _move(view, migration_h, k, NOWHERE, alone, scratch)


@compiled(arrays=False)
def _move(view: View, migration_h: float, k: int, b: int, place: Records, scratch: Scratch) -> None:
    """Offer one move: `k` goes to a place in the group, or for -1 in one of its own."""
    at = offer(scratch, scratch.saved[k] - place.usd)
    if at < 0:
        return
    row, job = scratch.rows[at], scratch.movers[k]
    begin_row(row, MOVE)
    leave_nodes(row, view.jobs[job], view.limits, migration_h, scratch.freed[k, 0], scratch.freed[k, 1])
    change_group(row, scratch.base[scratch.home[k]], scratch.cut[k])
    add_move(row, view.jobs, view.limits, job, NEW_GROUP if b < 0 else view.order[b], place)
    if b >= 0 and b != scratch.home[k]:
        keep_group(row, scratch.base[b])


@compiled
def enumerate_moves(view: View, valuation: Valuation, scratch: Scratch, choices: Records) -> tuple[int, int]:
    """Write the rows with the greatest gain, the greatest first; of equal gains the one that was found first.

    Args:
        view: `order` has the groups that are looked at, in order of creation: `choose_groups`.
        valuation: its stays are written for their members, and its terms.
        choices: (A,) out: records of `choice_type`; row 0 is left as it is.

    Returns:
        How many rows were written, and how many there are.
    """
    counts = scratch.counts
    counts[:] = 0
    m = _prepare(view, valuation, scratch)
    _single_moves(view, valuation, m, scratch)
    offer_exchanges(view, valuation, m, scratch)
    home, rank, rows = scratch.home, scratch.rank, scratch.rows
    k = 0
    while k < m:
        n = 1
        while k + n < m and home[k + n] == home[k]:
            n += 1
        if 2 <= n <= MOVES_MOST and n == view.groups[view.order[home[k]]].n_members:
            offer_merger(view, valuation, k, n, scratch)
        k += n
    count = counts[0]
    for k in range(count):
        at = k
        while at > 0:
            ahead = rank[at - 1]
            less = rows[ahead].gain - rows[k].gain
            if less > 0.0 or (less == 0.0 and scratch.serial[ahead] < scratch.serial[k]):
                break
            rank[at] = ahead
            at -= 1
        rank[at] = k
    for k in range(count):
        choices[1 + k] = rows[rank[k]]
        choices[1 + k].allowed = 1
        clear_unused_moves(choices[1 + k])
    return count, counts[1]
