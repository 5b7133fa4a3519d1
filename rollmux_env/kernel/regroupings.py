"""Moves of running jobs that are looked at after an event: single moves, exchanges, and mergers.

    move      a job goes to its best place in another group, or to a group of its own
    exchange  a job takes the place of one of another group, which goes to the first one's group (a swap), or to its best place in
              any third group, or to a group of its own
    merger    all members of a small group go elsewhere one after the other, the longest T_solo first, each to its best place

The best place is the one that costs least at the shortest horizon (`net_usd`). A row's gain is what the groups that it changes
cost less, minus its price: the nodes that the movers leave are paid for until their pauses end.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.exchanges import offer_exchanges
from rollmux_env.kernel.horizons import Stays, iterations_done, net_usd
from rollmux_env.kernel.joining import Records, Terms, best_place, copy_group, may_join, place_alone
from rollmux_env.kernel.membership import may_pause
from rollmux_env.kernel.mergers import offer_merger
from rollmux_env.kernel.rows import (
    JOBS_MOST,
    MOVE,
    MOVES_MOST,
    NEW_GROUP,
    Space,
    add_move,
    begin_row,
    change_group,
    falls_short,
    keep_group,
    offer,
    price_of,
    value_now,
)
from rollmux_env.kernel.tables import Floats, GroupTable, Ints, JobTable, Limits


@compiled
def choose_groups(jobs: JobTable, groups: GroupTable, order: Ints, limits: Limits, now_s: float, out: Ints) -> int:
    """Choose the groups that are looked at: all, or where there are more than `out` takes, first those that changed at this time,
    then those with the highest price for their members' own nodes; ties go to the older one.

    Args:
        out: (F,) out: their rows, in order of creation.

    Returns:
        How many.
    """
    n = order.shape[0]
    most = out.shape[0]
    if n <= most:
        for k in range(n):
            out[k] = order[k]
        return int(n)
    dear = np.empty(n)
    for k in range(n):
        group = order[k]
        own = 0.0
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            own += jobs.rollout_nodes[job] * limits.rollout_usd + jobs.training_nodes[job] * limits.training_usd
        usd = groups.n_nodes[group] * limits.rollout_usd + groups.training_nodes[group] * limits.training_usd
        dear[k] = np.inf if groups.since_s[group] == now_s else (usd / own if own > 0.0 else 0.0)
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


@uncounted
def _may_move(jobs: JobTable, groups: GroupTable, now_s: float, migration_s: float, job: int) -> bool:
    """Whether a running job may be moved: it can be, and neither was placed or moved in this instant nor is in a pause."""
    if jobs.movable[job] == 0 or jobs.admitted_s[job] >= now_s or jobs.paused_until_s[job] >= now_s:
        return False
    done = iterations_done(jobs, groups, job, now_s)
    return may_pause(now_s - jobs.admitted_s[job], migration_s, jobs.limit_s[job], done)


@uncounted
def _prepare(
    jobs: JobTable,
    groups: GroupTable,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    now_s: float,
    space: Space,
) -> int:
    """Value the groups, with and without each job that may move; returns how many there are."""
    scratch = space.scratch
    first = groups.id.shape[0]
    m = 0
    for f in range(looked.shape[0]):
        group = looked[f]
        value_now(jobs, groups, limits, stays, terms, group, scratch, space.base[f])
        if groups.exclusive[group] != 0:
            continue
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            if m == JOBS_MOST or not _may_move(jobs, groups, now_s, terms.migration_h * 3600.0, job):
                continue
            space.movers[m] = job
            space.home[m] = f
            copy = first + m
            copy_group(jobs, groups, group, job, space.copies, copy)
            space.freed[m, 0] = groups.n_nodes[group] - space.copies.n_nodes[copy]
            space.freed[m, 1] = 0
            if space.copies.n_members[copy] == 0:
                space.freed[m, 1] = groups.training_nodes[group]
                space.cut[m] = 0.0
            else:
                value_now(jobs, space.copies, limits, stays, terms, copy, scratch, space.cut[m])
            m += 1
    return m


@uncounted
def _saved_by_leaving(limits: Limits, terms: Terms, m: int, space: Space, out: Floats) -> None:
    """Write (m,) what each job's group costs less without it, minus the price of the nodes that it leaves, $."""
    base, cut, home = space.base, space.cut, space.home
    for k in range(m):
        out[k] = net_usd(base[home[k]]) - net_usd(cut[k]) - price_of(space, limits, terms, k)


@uncounted
def _single_moves(
    jobs: Records,
    groups: Records,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    m: int,
    saved: Floats,
    space: Space,
    found: Ints,
) -> None:
    """Find the best place of every job in every other group and in one of its own, and offer the moves there."""
    joins, base, kept, scratch = space.joins, space.base, space.kept, space.scratch
    for k in range(m):
        job, a = space.movers[k], space.home[k]
        alone = space.alone[k]
        place_alone(jobs, groups, limits, stays, terms, job, scratch, alone)
        for b in range(looked.shape[0]):
            if b == a:
                continue
            place = joins[k, b]
            place.ok = 0
            if may_join(groups[looked[b]], jobs[job], limits, terms.shield):
                best_place(jobs, groups, limits, stays, terms, looked[b], job, base[b], scratch, place)
            if place.ok == 1 and not falls_short(kept, found, saved[k] - place.usd):
                _move(jobs, looked, limits, terms, k, b, place, saved[k], space, found)
        several = groups[looked[a]].n_members > 1
        if alone.ok == 1 and several and not falls_short(kept, found, saved[k] - alone.usd):
            _move(jobs, looked, limits, terms, k, -1, alone, saved[k], space, found)


@uncounted
def _move(
    jobs: JobTable,
    looked: Ints,
    limits: Limits,
    terms: Terms,
    k: int,
    b: int,
    place: Records,
    left: float,
    space: Space,
    found: Ints,
) -> None:
    """Offer one move: `k` goes to a place in the group, or for -1 in one of its own."""
    at = offer(space, found, left - place.usd)
    if at < 0:
        return
    row = space.kept[at]
    begin_row(row, MOVE)
    change_group(row, limits, terms, space.freed[k, 0], space.freed[k, 1], space.base[space.home[k]], space.cut[k])
    add_move(row, jobs, limits, space.movers[k], NEW_GROUP if b < 0 else looked[b], place)
    if b >= 0:
        keep_group(row, space.base[b])


@uncounted
def enumerate_regroupings(
    jobs: JobTable,
    groups: GroupTable,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    now_s: float,
    space: Space,
    choices: Records,
) -> tuple[int, int]:
    """Write the rows with the greatest gain, the greatest first; of equal gains the one that was found first.

    Args:
        looked: (F,) rows of the groups, in order of creation: `choose_groups`.
        stays: written for their members.
        choices: (A,) out: records of `choice_type`; row 0 is left as it is.

    Returns:
        How many rows were written, and how many there are.
    """
    found = space.found
    found[:] = 0
    m = _prepare(jobs, groups, looked, limits, stays, terms, now_s, space)
    saved = space.saved[:m]
    _saved_by_leaving(limits, terms, m, space, saved)
    _single_moves(jobs, groups, looked, limits, stays, terms, m, saved, space, found)
    offer_exchanges(jobs, groups, looked, limits, stays, terms, m, saved, space, found)
    k = 0
    while k < m:
        n = 1
        while k + n < m and space.home[k + n] == space.home[k]:
            n += 1
        if 2 <= n <= MOVES_MOST and n == groups.n_members[looked[space.home[k]]]:
            offer_merger(jobs, groups, looked, limits, stays, terms, k, n, space, found)
        k += n
    count = found[0]
    for k in range(count):
        at = k
        while at > 0:
            ahead = space.rank[at - 1]
            less = space.kept.gain[ahead] - space.kept.gain[k]
            if less > 0.0 or (less == 0.0 and space.serial[ahead] < space.serial[k]):
                break
            space.rank[at] = ahead
            at -= 1
        space.rank[at] = k
    for k in range(count):
        choices[1 + k] = space.kept[space.rank[k]]
        choices.allowed[1 + k] = 1
    return count, found[1]
