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
from rollmux_env.kernel.neighbourhood.insertion import best_place, copy_without, place_alone
from rollmux_env.kernel.neighbourhood.several import offer_exchanges, offer_merger
from rollmux_env.kernel.neighbourhood.table import (
    JOBS_MOST,
    MOVE,
    MOVES_MOST,
    Chance,
    Scratch,
    begin_row,
    clear_unused_moves,
    enter,
    falls_short,
    leave_one,
    offer,
)
from rollmux_env.kernel.pools import dearness, nodes_usd
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
    n = len(order)
    most = len(out)
    if n <= most:
        for k in range(n):
            out[k] = order[k]
        return int(n)
    dear = np.empty(n)
    for k in range(n):
        group = view.groups[order[k]]
        dear[k] = np.inf if group.since_s == view.clock.now_s else dearness(jobs, group, limits)
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
def _prepare(chance: Chance) -> int:
    """Value the groups, with and without each job that may move; returns how many there are."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    jobs, groups, copies, migration_h = view.jobs, view.groups, scratch.copies, valuation.terms[0].migration_h
    other = View(jobs, copies, view.order, view.limits, view.clock)
    m = 0
    for f in range(len(view.order)):
        group = groups[view.order[f]]
        value_now(view, valuation, view.order[f], scratch.base[f])
        if group.exclusive != 0:
            continue
        for i in range(group.n_members):
            job = group.members[i]
            if m == JOBS_MOST or not _may_move(view, migration_h * 3600.0, job):
                continue
            for shape in range(1 + jobs[job].more_shapes):
                valuation.stays[shape_row(jobs[job], job, shape)] = valuation.stays[job]
            mover, row = scratch.movers[m], len(groups) + m
            mover.job, mover.home = job, f
            copy_without(jobs, groups, job, copies, row)
            mover.left[0] = group.n_nodes - copies[row].n_nodes
            mover.left[1] = 0
            if copies[row].n_members == 0:
                mover.left[1] = group.training_nodes
                for k in range(len(mover.cut)):
                    mover.cut[k] = 0.0
            else:
                value_now(other, valuation, row, mover.cut)
            price = nodes_usd(group, mover.left[0], mover.left[1], view.limits) * migration_h
            mover.saved = net_usd(scratch.base[f]) - net_usd(mover.cut) - price
            m += 1
    return m


@compiled(arrays=False)
def _single_moves(chance: Chance, m: int) -> None:
    """Find the best place of every job in every other group, in its own in another shape, and in a new one, and offer those."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    cut = View(view.jobs, scratch.copies, view.order, view.limits, view.clock)
    for k in range(m):
        mover = scratch.movers[k]
        now = view.jobs[mover.job].of_shape
        several = view.groups[view.order[mover.home]].n_members > 1
        place_alone(view, valuation, mover.job, NOWHERE if several else now, scratch.alone[k])
        for b in range(len(view.order)):
            place = scratch.joins[k, b]
            if b == mover.home:
                best_place(cut, valuation, len(view.groups) + k, mover.job, now, mover.cut, place)
            else:
                best_place(view, valuation, view.order[b], mover.job, NOWHERE, scratch.base[b], place)
            _move(chance, k, b, place)
        _move(chance, k, NOWHERE, scratch.alone[k])


@compiled(arrays=False)
def _move(chance: Chance, k: int, b: int, place: Records) -> None:
    """Offer one move, if there is the place: `k` goes to it in the group, or for -1 in one of its own."""
    scratch = chance.scratch
    gain = scratch.movers[k].saved - place.usd
    if place.ok == 0 or falls_short(scratch, gain):
        return
    at = offer(scratch, gain)
    if at < 0:
        return
    row = scratch.rows[at]
    begin_row(row, MOVE)
    leave_one(chance, row, k)
    enter(chance, row, k, b, place, b != scratch.movers[k].home)


@compiled(arrays=False)
def _sort_rows(scratch: Scratch) -> None:
    """Rank the rows, the greatest gain first; of equal gains the one that was found first."""
    rank, rows = scratch.rank, scratch.rows
    for k in range(scratch.counts[0]):
        at = k
        while at > 0:
            ahead = rank[at - 1]
            less = rows[ahead].gain - rows[k].gain
            if less > 0.0 or (less == 0.0 and scratch.serial[ahead] < scratch.serial[k]):
                break
            rank[at] = ahead
            at -= 1
        rank[at] = k


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
    chance, movers = Chance(view, valuation, scratch), scratch.movers
    scratch.counts[:] = 0
    m = _prepare(chance)
    _single_moves(chance, m)
    offer_exchanges(chance, m)
    k = 0
    while k < m:
        n = 1
        while k + n < m and movers[k + n].home == movers[k].home:
            n += 1
        if 2 <= n <= MOVES_MOST and n == view.groups[view.order[movers[k].home]].n_members:
            offer_merger(chance, k, n)
        k += n
    _sort_rows(scratch)
    count = scratch.counts[0]
    for k in range(count):
        choices[1 + k] = scratch.rows[scratch.rank[k]]
        choices[1 + k].allowed = 1
        clear_unused_moves(choices[1 + k])
    return count, scratch.counts[1]
