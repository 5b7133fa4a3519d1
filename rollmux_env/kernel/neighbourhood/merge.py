"""Dissolving a small group: all its members go elsewhere at once."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import attach, shape_row, wear
from rollmux_env.kernel.neighbourhood.insertion import best_place, copy_group
from rollmux_env.kernel.neighbourhood.table import (
    JOBS_MOST,
    MERGER,
    MOVES_MOST,
    Scratch,
    add_move,
    begin_row,
    change_group,
    keep_group,
    leave_nodes,
    offer,
)
from rollmux_env.kernel.pools import has_room, nodes_usd
from rollmux_env.kernel.tables import NOWHERE, Ints, Records, View
from rollmux_env.kernel.valuation import HORIZONS_H, Valuation, net_usd


@compiled(arrays=False)
def _sort_longest_first(jobs: Records, movers: Ints, from_k: int, n: int, out: Ints) -> None:
    """Write (n,) the movers from `from_k` on, the longest T_solo first; of equal ones the older."""
    for i in range(n):
        at = i
        while at > 0 and jobs[movers[out[at - 1]]].solo_s < jobs[movers[from_k + i]].solo_s:
            out[at] = out[at - 1]
            at -= 1
        out[at] = from_k + i


@compiled(arrays=False)
def _find_place(view: View, valuation: Valuation, k: int, a: int, touched: int, scratch: Scratch) -> tuple[int, bool]:
    """Find the best place of a member in the groups but the `a`-th, of which `touched` already have others of its group.

    Returns:
        Which group, -1 for none, and whether the place is in `scratch.alone[k]`: its group is a touched one; else in
        `scratch.joins`.
    """
    copies = View(view.jobs, scratch.copies, view.order, view.limits, view.clock)
    first = view.groups.shape[0] + JOBS_MOST
    joins, job = scratch.joins, scratch.movers[k]
    to, usd, among = -1, np.inf, -1
    for b in range(view.order.shape[0]):
        at = -1
        for t in range(touched):
            if scratch.touched[t] == b:
                at = t
        if b != a and at < 0 and joins[k, b].ok == 1 and joins[k, b].usd < usd:
            to, usd = b, joins[k, b].usd
    for t in range(touched):
        place = scratch.alone[k]  # not of use any more once the mergers are looked at
        best_place(copies, valuation, first + t, job, NOWHERE, scratch.sums[t], place)
        if place.ok == 1 and (place.usd < usd or (place.usd == usd and scratch.touched[t] < to)):
            to, usd, among = scratch.touched[t], place.usd, t
            scratch.merged[0] = place
    return to, among >= 0


@compiled
def offer_merger(view: View, valuation: Valuation, from_k: int, n: int, scratch: Scratch) -> None:
    """Offer to dissolve a group, of which movers `from_k` and the n - 1 after it are the members."""
    jobs, groups, limits, looked, stays = view.jobs, view.groups, view.limits, view.order, valuation.stays
    copies, trial, sums, movers = scratch.copies, scratch.trial, scratch.sums, scratch.movers
    migration_h = valuation.terms[0].migration_h
    a = scratch.home[from_k]
    group = looked[a]
    first = groups.shape[0] + JOBS_MOST
    ks = np.empty(MOVES_MOST, np.int64)
    goes = np.empty(MOVES_MOST, np.int64)
    _sort_longest_first(jobs, movers, from_k, n, ks)
    usd = 0.0
    new = 0
    touched = 0
    placed = 0
    was_jobs, was_stays = scratch.was_jobs, scratch.was_stays
    while placed < n:
        job = movers[ks[placed]]
        best = trial[placed]
        to, again = _find_place(view, valuation, ks[placed], a, touched, scratch)
        if to < 0:
            break
        if again:
            trial[placed] = scratch.merged[0]
        else:
            trial[placed] = scratch.joins[ks[placed], to]
        there = jobs[shape_row(jobs[job], job, best.of_shape)]
        if not has_room(there, new + best.new_nodes, 0, limits, view.clock):  # `new` may be of several pools: then too few
            break
        goes[placed] = to
        usd += best.usd
        new += best.new_nodes
        if placed + 1 < n:
            at = touched
            for t in range(touched):
                if scratch.touched[t] == to:
                    at = t
            if at == touched:
                touched += 1
                scratch.touched[at] = to
                copy_group(jobs, groups, looked[to], NOWHERE, copies, first + at)
                for v in range(sums.shape[1]):
                    sums[at, v] = scratch.base[to, v]
            for v in range(sums.shape[1]):
                sums[at, v] += best.more[v]
            was_jobs[placed], was_stays[placed] = jobs[job], stays[job]
            wear(jobs, job, best.of_shape)
            taken = jobs[job].rollout_nodes - best.new_nodes
            for v in range(taken):
                jobs[job].pins[v] = best.nodes[v]
            jobs[job].visits = 1
            attach(jobs, copies, job, first + at, taken, best.new_nodes)
            stays[job].stay_h += migration_h
            stays[job].pause_h = migration_h
            stays[job].left *= np.exp(-migration_h / HORIZONS_H[2])
        placed += 1
    for i in range(min(placed, n - 1)):
        job = movers[ks[i]]
        jobs[job], stays[job] = was_jobs[i], was_stays[i]
    if placed < n:
        return
    rollout, training = groups[group].n_nodes, groups[group].training_nodes
    price = nodes_usd(groups[group], rollout, training, limits) * migration_h
    at = offer(scratch, net_usd(scratch.base[a]) - usd - price)
    if at < 0:
        return
    row = scratch.rows[at]
    for v in range(valuation.values.shape[0]):
        valuation.values[v] = 0.0
    begin_row(row, MERGER)
    leave_nodes(row, groups[group], limits, migration_h, rollout, training)
    change_group(row, scratch.base[a], valuation.values)
    for i in range(n):
        job = movers[ks[i]]
        add_move(row, jobs, limits, job, looked[goes[i]], trial[i])
        again = False
        for j in range(i):
            again = again or goes[j] == goes[i]
        if not again:
            keep_group(row, scratch.base[goes[i]])
