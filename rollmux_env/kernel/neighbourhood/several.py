"""Rows of several moves: exchanges, where one job takes the place of one of another group, and mergers, which dissolve a group."""

from __future__ import annotations

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import shape_row, visit
from rollmux_env.kernel.neighbourhood.insertion import best_place
from rollmux_env.kernel.neighbourhood.table import (
    EXCHANGE,
    GROUPS_MOST,
    MERGER,
    Chance,
    begin_row,
    enter,
    falls_short,
    leave,
    leave_one,
    offer,
)
from rollmux_env.kernel.pools import has_room, nodes_usd
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TRAINING, Records, View
from rollmux_env.kernel.trials import keep_group, keep_job, take_back
from rollmux_env.kernel.valuation import delay, net_usd


@compiled(arrays=False)
def _find_nearest(chance: Chance, m: int) -> None:
    """Find the two of the other groups where each job costs least; of equal ones the older first."""
    joins, movers = chance.scratch.joins, chance.scratch.movers
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
    """Offer what pairs of jobs can do: one takes the other's place, and the other goes elsewhere.

    Args:
        m: movers. Their single moves have been looked at.
    """
    view, scratch = chance.cluster, chance.scratch
    joins, movers = scratch.joins, scratch.movers
    there = View(view.jobs, scratch.copies, view.order, view.limits, view.clock)
    for k in range(m):
        for other in range(m):
            if movers[k].home != movers[other].home:
                place, group = joins[k, GROUPS_MOST + other], len(view.groups) + other
                best_place(there, chance.valuation, group, movers[k].job, NOWHERE, movers[other].cut, place)
    _find_nearest(chance, m)
    for k in range(m):
        for other in range(m):
            if movers[k].home != movers[other].home and joins[k, GROUPS_MOST + other].ok == 1:
                _offer_pair(chance, k, other)


@compiled(arrays=False)
def _offer_pair(chance: Chance, k: int, other: int) -> None:
    """Offer that `k` takes the place of `other`, which takes that of `k`, and that it goes where it costs least."""
    scratch = chance.scratch
    home, nearest = scratch.movers[k].home, scratch.movers[other].nearest
    if k < other:
        _exchange(chance, k, other, home, scratch.joins[other, GROUPS_MOST + k])
    away, own = nearest[1] if nearest[0] == home else nearest[0], scratch.alone[other]
    if own.ok == 1 and (away < 0 or own.usd < scratch.joins[other, away].usd):
        _exchange(chance, k, other, NOWHERE, own)
    elif away >= 0:
        _exchange(chance, k, other, away, scratch.joins[other, away])


@compiled(arrays=False)
def _exchange(chance: Chance, k: int, other: int, c: int, to: Records) -> None:
    """Offer one exchange, if it can be: `other` goes to a place in a group first, or for -1 in one of its own, then `k` takes its
    place."""
    scratch = chance.scratch
    mover, first, place = scratch.movers[k], scratch.movers[other], scratch.joins[k, GROUPS_MOST + other]
    gain = mover.saved + first.saved - place.usd - to.usd
    if to.ok == 0 or not _are_nodes(chance.cluster, mover.job, place, first.job, to, c < 0) or falls_short(scratch, gain):
        return
    at = offer(scratch, gain)
    if at < 0:
        return
    row = scratch.rows[at]
    begin_row(row, EXCHANGE)
    leave_one(chance, row, k)
    leave_one(chance, row, other)
    enter(chance, row, other, c, to, c != mover.home)
    enter(chance, row, k, first.home, place, False)


@compiled(arrays=False)
def _are_nodes(view: View, one: int, place: Records, two: int, to: Records, new_group: bool) -> bool:
    """Whether the cluster has the nodes that the places of two jobs, rows, add; the second one's may be a new group."""
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
    jobs, movers, leaving = chance.cluster.jobs, chance.scratch.movers, chance.scratch.leaving
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
    k = scratch.leaving[i]
    mover, best, look = scratch.movers[k], scratch.merging[i], scratch.merging[len(scratch.merging) - 1]
    to = -1
    for b in range(len(view.order)):
        if b == mover.home:
            continue
        if scratch.gains[b] == 0:
            if scratch.joins[k, b].ok == 1 and (to < 0 or scratch.joins[k, b].usd < best.usd):
                to, scratch.merging[i] = b, scratch.joins[k, b]
            continue
        best_place(view, chance.valuation, view.order[b], mover.job, NOWHERE, scratch.sums[b], look)
        if look.ok == 1 and (to < 0 or look.usd < best.usd):
            to, scratch.merging[i] = b, look
    return to


@compiled(arrays=False)
def _try(chance: Chance, i: int, b: int) -> None:
    """Let the `i`-th mover of a merger take the place that was found for it in the `b`-th group, until the trial is taken back."""
    view, scratch, stays = chance.cluster, chance.scratch, chance.valuation.stays
    job, place, group = scratch.movers[scratch.leaving[i]].job, scratch.merging[i], view.order[b]
    keep_job(scratch.trial, view.jobs, job)
    keep_group(scratch.trial, view.groups, group)
    scratch.stays[i] = stays[job]
    for v in range(len(place.more)):
        scratch.sums[b, v] = (scratch.base[b, v] if scratch.gains[b] == 0 else scratch.sums[b, v]) + place.more[v]
    scratch.gains[b] = 1
    visit(view.jobs, view.groups, job, group, place.of_shape, place.nodes, place.new_nodes)
    delay(stays[job], chance.valuation.terms[0].migration_h)


@compiled(arrays=False)
def offer_merger(chance: Chance, from_k: int, n: int) -> None:
    """Offer to dissolve a group, of which movers `from_k` and the n - 1 after it are the members."""
    view, valuation, scratch = chance.cluster, chance.valuation, chance.scratch
    a = scratch.movers[from_k].home
    _sort_longest_first(chance, from_k, n)
    usd = 0.0
    new = 0
    placed = 0
    while placed < n:
        to, place, job = _find_place(chance, placed), scratch.merging[placed], scratch.movers[scratch.leaving[placed]].job
        if to < 0:
            break
        there = view.jobs[shape_row(view.jobs[job], job, place.of_shape)]
        if not has_room(there, new + place.new_nodes, 0, view.limits, view.clock):  # `new` may be of several pools: then too few
            break
        scratch.goes[placed] = to
        usd += place.usd
        new += place.new_nodes
        if placed + 1 < n:
            _try(chance, placed, to)
        placed += 1
    for i in range(min(placed, n - 1)):
        valuation.stays[scratch.movers[scratch.leaving[i]].job] = scratch.stays[i]
        scratch.gains[scratch.goes[i]] = 0
    take_back(scratch.trial, view.jobs, view.groups)
    if placed == n:
        _merge(chance, a, n, usd)


@compiled(arrays=False)
def _merge(chance: Chance, a: int, n: int, usd: float) -> None:
    """Offer one merger, where the movers' places cost so much."""
    scratch, values = chance.scratch, chance.valuation.values
    group = chance.cluster.groups[chance.cluster.order[a]]
    price = nodes_usd(group, group.n_nodes, group.training_nodes, chance.cluster.limits) * chance.valuation.terms[0].migration_h
    at = offer(scratch, net_usd(scratch.base[a]) - usd - price)
    if at < 0:
        return
    row = scratch.rows[at]
    begin_row(row, MERGER)
    for v in range(len(values)):
        values[v] = 0.0
    left = scratch.movers[scratch.leaving[0]].nearest  # not of use any more once the exchanges are looked at
    left[0], left[1] = group.n_nodes, group.training_nodes
    leave(chance, row, a, left, values)
    for i in range(n):
        again = False
        for j in range(i):
            again = again or scratch.goes[j] == scratch.goes[i]
        enter(chance, row, scratch.leaving[i], scratch.goes[i], scratch.merging[i], not again)
