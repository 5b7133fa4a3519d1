"""Moves of running jobs that are examined after an event: single moves, exchanges, and mergers.

    move      a job goes to its best place in another group, or to a new group, or gets another shape where it is
    exchange  a job takes the place of a job of another group, which goes to the first one's group (a swap), or to its best place
              in any third group, or to a new group
    merger    all members of a small group go elsewhere one after the other, the longest T_solo first, each to its best place

The best place is the one that costs least at the shortest horizon (`net_usd`), over all shapes of the job. A row's gain is the
decrease of the cost of the groups that it changes, minus its price: the nodes that the movers leave are paid for until their
pauses end.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import may_pause, place_tentatively, remove_member, shape_row
from rollmux_env.kernel.neighbourhood.table import (
    EXCHANGE,
    GROUPS_MOST,
    JOBS_MOST,
    MERGER,
    MOVE,
    MOVES_MOST,
    Chance,
    Offers,
    Scratch,
    best_place,
    clear_unused_moves,
    enter,
    leave,
    leave_one,
    offer,
    place_alone,
)
from rollmux_env.kernel.pools import has_room, nodes_usd, price_ratio
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TRAINING, Ints, Records, View
from rollmux_env.kernel.trials import save_group, save_job, undo_trial
from rollmux_env.kernel.valuation import Valuation, delay, iterations_done, net_usd, value_now


@compiled(arrays=False)
def _find_nearest(chance: Chance, m: int) -> None:
    """Find the two of the other groups where each job costs least; of equal ones the older first."""
    joins, movers = chance.scratch.examined.joins, chance.scratch.examined.movers
    for k in range(m):
        nearest = movers[k].nearest
        nearest[0] = nearest[1] = -1
        for c in range(len(chance.cluster.order)):
            if c == movers[k].home or joins[k, c].ok == 0:
                continue
            usd = joins[k, c].usd
            if nearest[0] < 0 or usd < joins[k, nearest[0]].usd:
                nearest[1] = nearest[0]
                nearest[0] = c
            elif nearest[1] < 0 or usd < joins[k, nearest[1]].usd:
                nearest[1] = c


@compiled(arrays=False)
def offer_exchanges(chance: Chance, m: int) -> None:
    """Offer the exchanges of pairs of jobs: one takes the other's place, and the other goes elsewhere.

    Args:
        chance: Tables, terms and scratch of the decision.
        m: Number of movers. Their single moves have been examined.
    """
    view, examined = chance.cluster, chance.scratch.examined
    joins, movers = examined.joins, examined.movers
    cut = View(view.jobs, examined.copies, view.order, view.limits, view.clock)
    for k in range(m):
        for other in range(m):
            if movers[k].home != movers[other].home:
                place, group = joins[k, GROUPS_MOST + other], len(view.groups) + other
                best_place(cut, chance.valuation, group, movers[k].job, NOWHERE, examined.cut[other], place)
    _find_nearest(chance, m)
    for k in range(m):
        for other in range(m):
            if movers[k].home != movers[other].home and joins[k, GROUPS_MOST + other].ok == 1:
                _offer_pair(chance, k, other)


@compiled(arrays=False, inline=True)
def _offer_pair(chance: Chance, k: int, other: int) -> None:
    """Offer that `k` takes the place of `other`, which takes that of `k`, and that it goes where it costs least."""
    scratch = chance.scratch
    home, nearest = scratch.examined.movers[k].home, scratch.examined.movers[other].nearest
    if k < other:
        _exchange(chance, k, other, home, scratch.examined.joins[other, GROUPS_MOST + k])
    away, own = nearest[1] if nearest[0] == home else nearest[0], scratch.examined.alone[other]
    if own.ok == 1 and (away < 0 or own.usd < scratch.examined.joins[other, away].usd):
        _exchange(chance, k, other, NOWHERE, own)
    elif away >= 0:
        _exchange(chance, k, other, away, scratch.examined.joins[other, away])


@compiled(arrays=False, inline=True)
def _exchange(chance: Chance, k: int, other: int, c: int, to: Records) -> None:
    """Offer one exchange, if it is possible.

    `other` goes to a place in a group first, or to a new group for -1. Then `k` takes its place.
    """
    scratch = chance.scratch
    mover, first, place = scratch.examined.movers[k], scratch.examined.movers[other], scratch.examined.joins[k, GROUPS_MOST + other]
    if to.ok == 0 or not _are_nodes(chance.cluster, mover.job, place, first.job, to, c < 0):
        return
    at = offer(scratch.offers, mover.saved + first.saved - place.usd - to.usd, EXCHANGE)
    if at < 0:
        return
    row = scratch.offers.rows[at]
    leave_one(chance, row, k)
    leave_one(chance, row, other)
    enter(chance, row, other, c, to, c != mover.home)
    enter(chance, row, k, first.home, place, False)


@compiled(arrays=False)
def _are_nodes(view: View, one: int, place: Records, two: int, to: Records, new_group: bool) -> bool:
    """Return whether the cluster has the nodes that the places of two job rows add; the second place may be a new group."""
    pools, nodes, jobs = view.limits.pools, view.clock.nodes, view.jobs
    job, other = jobs[shape_row(jobs[one], one, place.of_shape)], jobs[shape_row(jobs[two], two, to.of_shape)]
    training = other.training_nodes if new_group else 0
    for p in range(len(nodes)):
        more = place.new_nodes if job.rollout_pool == p else 0
        more += to.new_nodes if other.rollout_pool == p else 0
        more += training if other.training_pool == p else 0
        if more > 0 and nodes[p, ROLLOUT] + nodes[p, TRAINING] + more > pools[p].nodes_max:
            return False
    return True


@compiled(arrays=False)
def _sort_longest_first(chance: Chance, from_k: int, n: int) -> None:
    """Write the movers of a merger, those from `from_k` on, the longest T_solo first; of equal ones the older."""
    jobs, movers, leaving = chance.cluster.jobs, chance.scratch.examined.movers, chance.scratch.merger.leaving
    for i in range(n):
        at = i
        while at > 0 and jobs[movers[leaving[at - 1]].job].solo_s < jobs[movers[from_k + i].job].solo_s:
            leaving[at] = leaving[at - 1]
            at -= 1
        leaving[at] = from_k + i


@compiled(arrays=False)
def _find_place(chance: Chance, i: int) -> int:
    """Find the best place of the `i`-th mover of a merger in the other groups, as they are by now; which group, -1 for none."""
    view, scratch = chance.cluster, chance.scratch
    k = scratch.merger.leaving[i]
    mover, best, candidate = (
        scratch.examined.movers[k],
        scratch.merger.places[i],
        scratch.merger.places[len(scratch.merger.places) - 1],
    )
    to = -1
    for b in range(len(view.order)):
        if b == mover.home:
            continue
        if scratch.merger.gains[b] == 0:
            if scratch.examined.joins[k, b].ok == 1 and (to < 0 or scratch.examined.joins[k, b].usd < best.usd):
                to, scratch.merger.places[i] = b, scratch.examined.joins[k, b]
            continue
        best_place(view, chance.valuation, view.order[b], mover.job, NOWHERE, scratch.merger.sums[b], candidate)
        if candidate.ok == 1 and (to < 0 or candidate.usd < best.usd):
            to, scratch.merger.places[i] = b, candidate
    return to


@compiled(arrays=False)
def _place_on_trial(chance: Chance, i: int, b: int) -> None:
    """Place the `i`-th mover of a merger where a place was found for it, in the `b`-th group, until the trial is undone."""
    view, scratch, stays = chance.cluster, chance.scratch, chance.valuation.stays
    job, place, group = scratch.examined.movers[scratch.merger.leaving[i]].job, scratch.merger.places[i], view.order[b]
    save_job(scratch.merger.trial, view.jobs, job)
    save_group(scratch.merger.trial, view.groups, group)
    scratch.merger.stays[i] = stays[job]
    for v in range(len(place.more)):
        scratch.merger.sums[b, v] = (
            scratch.examined.base[b, v] if scratch.merger.gains[b] == 0 else scratch.merger.sums[b, v]
        ) + place.more[v]
    scratch.merger.gains[b] = 1
    place_tentatively(view.jobs, view.groups, job, group, place.of_shape, place.nodes, place.new_nodes)
    delay(stays[job], chance.valuation.terms[0].migration_h)


@compiled(arrays=False)
def offer_merger(chance: Chance, from_k: int, n: int) -> None:
    """Offer to dissolve a group, of which movers `from_k` and the n - 1 after it are the members."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    a = scratch.examined.movers[from_k].home
    _sort_longest_first(chance, from_k, n)
    usd = 0.0
    new = 0
    placed = 0
    while placed < n:
        to, place, job = (
            _find_place(chance, placed),
            scratch.merger.places[placed],
            scratch.examined.movers[scratch.merger.leaving[placed]].job,
        )
        if to < 0:
            break
        shaped = view.jobs[shape_row(view.jobs[job], job, place.of_shape)]
        if not has_room(shaped, new + place.new_nodes, 0, view.limits, view.clock):  # `new` may be of several pools: then too few
            break
        scratch.merger.goes[placed] = to
        usd += place.usd
        new += place.new_nodes
        if placed + 1 < n:
            _place_on_trial(chance, placed, to)
        placed += 1
    for i in range(min(placed, n - 1)):
        valuation.stays[scratch.examined.movers[scratch.merger.leaving[i]].job] = scratch.merger.stays[i]
        scratch.merger.gains[scratch.merger.goes[i]] = 0
    undo_trial(scratch.merger.trial, view.jobs, view.groups)
    if placed == n:
        _merge(chance, a, n, usd)


@compiled(arrays=False)
def _merge(chance: Chance, a: int, n: int, usd: float) -> None:
    """Offer one merger, in which the movers' places cost `usd`."""
    scratch, values = chance.scratch, chance.valuation.values
    group = chance.cluster.groups[chance.cluster.order[a]]
    price = nodes_usd(group, group.n_nodes, group.training_nodes, chance.cluster.limits) * chance.valuation.terms[0].migration_h
    at = offer(scratch.offers, net_usd(scratch.examined.base[a]) - usd - price, MERGER)
    if at < 0:
        return
    row = scratch.offers.rows[at]
    for v in range(len(values)):
        values[v] = 0.0
    left = scratch.examined.movers[scratch.merger.leaving[0]].nearest  # no longer used after the exchanges
    left[0], left[1] = group.n_nodes, group.training_nodes
    leave(chance, row, a, left, values)
    for i in range(n):
        again = False
        for j in range(i):
            again = again or scratch.merger.goes[j] == scratch.merger.goes[i]
        enter(chance, row, scratch.merger.leaving[i], scratch.merger.goes[i], scratch.merger.places[i], not again)


@compiled
def choose_groups(view: View, out: Ints) -> int:
    """Choose the groups to examine: all, or if there are more than `out` has room for, the most recent and the most expensive.

    Groups that changed at this time come first, then those with the highest price for their members' own nodes; ties go to the
    older group.

    Args:
        view: Tables of the cluster.
        out: (F,) rows of the groups, in order of creation; written.

    Returns:
        The number of groups.
    """
    jobs, order, limits = view.jobs, view.order, view.limits
    n = len(order)
    most = len(out)
    if n <= most:
        for k in range(n):
            out[k] = order[k]
        return int(n)
    ratio = np.empty(n)
    for k in range(n):
        group = view.groups[order[k]]
        ratio[k] = np.inf if group.settled_s == view.clock.now_s else price_ratio(jobs, group, limits)
    chosen = np.zeros(n, np.int64)
    for _ in range(most):
        best = -1
        for k in range(n):
            if chosen[k] == 0 and (best < 0 or ratio[k] > ratio[best]):
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
    """Return whether a running job may be moved: it is movable, was not placed or moved at this instant, and is in no pause."""
    job, now_s = view.jobs[row], view.clock.now_s
    if job.movable == 0 or job.admitted_s >= now_s or job.paused_until_s >= now_s:
        return False
    done = iterations_done(view.jobs, view.groups, row, now_s)
    return may_pause(now_s - job.admitted_s, migration_s, job.limit_s, done)


@compiled(arrays=False)
def _prepare(chance: Chance) -> int:
    """Value the groups, with and without each job that may move; returns how many there are."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    jobs, groups, copies, migration_h = view.jobs, view.groups, scratch.examined.copies, valuation.terms[0].migration_h
    other = View(jobs, copies, view.order, view.limits, view.clock)
    m = 0
    for f in range(len(view.order)):
        group = groups[view.order[f]]
        value_now(view, valuation, view.order[f], scratch.examined.base[f])
        if group.exclusive != 0:
            continue
        for i in range(group.n_members):
            job = group.members[i]
            if m == JOBS_MOST or not _may_move(view, migration_h * 3600.0, job):
                continue
            for shape in range(1 + jobs[job].more_shapes):
                valuation.stays[shape_row(jobs[job], job, shape)] = valuation.stays[job]
            mover, row, cut = scratch.examined.movers[m], len(groups) + m, scratch.examined.cut[m]
            mover.job, mover.home = job, f
            copies[row] = group
            mover.left[0] = remove_member(jobs, copies, row, job, 0)
            mover.left[1] = 0
            if copies[row].n_members == 0:
                mover.left[1] = group.training_nodes
                for k in range(len(cut)):
                    cut[k] = 0.0
            else:
                value_now(other, valuation, row, cut)
            price = nodes_usd(group, mover.left[0], mover.left[1], view.limits) * migration_h
            mover.saved = net_usd(scratch.examined.base[f]) - net_usd(cut) - price
            m += 1
    return m


@compiled(arrays=False)
def _single_moves(chance: Chance, m: int) -> None:
    """Find the best place of every job in every other group, in its own in another shape, and in a new one, and offer those."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    cut = View(view.jobs, scratch.examined.copies, view.order, view.limits, view.clock)
    for k in range(m):
        mover = scratch.examined.movers[k]
        now = view.jobs[mover.job].of_shape
        several = view.groups[view.order[mover.home]].n_members > 1
        place_alone(view, valuation, mover.job, NOWHERE if several else now, scratch.examined.alone[k])
        for b in range(len(view.order)):
            place = scratch.examined.joins[k, b]
            if b == mover.home:
                best_place(cut, valuation, len(view.groups) + k, mover.job, now, scratch.examined.cut[k], place)
            else:
                best_place(view, valuation, view.order[b], mover.job, NOWHERE, scratch.examined.base[b], place)
            _move(chance, k, b, place)
        _move(chance, k, NOWHERE, scratch.examined.alone[k])


@compiled(arrays=False, inline=True)
def _move(chance: Chance, k: int, b: int, place: Records) -> None:
    """Offer one move, if the place exists: `k` goes to it in group `b`, or to a new group for -1."""
    scratch = chance.scratch
    at = offer(scratch.offers, scratch.examined.movers[k].saved - place.usd, MOVE) if place.ok == 1 else -1
    if at >= 0:
        leave_one(chance, scratch.offers.rows[at], k)
        enter(chance, scratch.offers.rows[at], k, b, place, b != scratch.examined.movers[k].home)


@compiled(arrays=False)
def _sort_rows(offers: Offers) -> None:
    """Rank the rows, the greatest gain first; of equal gains the one that was found first."""
    rank, rows = offers.rank, offers.rows
    for k in range(offers.counts[0]):
        at = k
        while at > 0:
            ahead = rank[at - 1]
            less = rows[ahead].gain - rows[k].gain
            if less > 0.0 or (less == 0.0 and offers.serial[ahead] < offers.serial[k]):
                break
            rank[at] = ahead
            at -= 1
        rank[at] = k


@compiled
def enumerate_moves(view: View, valuation: Valuation, scratch: Scratch, choices: Records) -> tuple[int, int]:
    """Write the rows with the greatest gain, the greatest first; of equal gains the one that was found first.

    Args:
        view: Tables of the cluster, with the groups of `choose_groups` in `order`, in order of creation.
        valuation: Terms, and stays written for the members of these groups.
        scratch: Room for the moves of one decision.
        choices: (A,) records of `choice_type`; written, except row 0.

    Returns:
        The number of rows written, and the number found.
    """
    chance, movers = Chance(view, valuation, scratch), scratch.examined.movers
    scratch.offers.counts[:] = 0
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
    _sort_rows(scratch.offers)
    count = scratch.offers.counts[0]
    for k in range(count):
        choices[1 + k] = scratch.offers.rows[scratch.offers.rank[k]]
        choices[1 + k].allowed = 1
        clear_unused_moves(choices[1 + k])
    return count, scratch.offers.counts[1]
