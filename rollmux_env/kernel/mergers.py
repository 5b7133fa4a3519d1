"""Dissolving a small group: all its members go elsewhere at once."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.horizons import HORIZONS_H, Stays, forget, net_usd
from rollmux_env.kernel.joining import Terms, best_place, copy_group, may_join
from rollmux_env.kernel.membership import attach
from rollmux_env.kernel.rows import JOBS_MOST, MERGER, MOVES_MOST, Space, add_move, begin_row, change_group, keep_group, offer
from rollmux_env.kernel.tables import GroupTable, Ints, JobTable, Limits


@compiled
def offer_merger(
    jobs: JobTable,
    groups: GroupTable,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    from_k: int,
    n: int,
    space: Space,
    found: Ints,
) -> None:
    """Offer to dissolve a group, of which movers `from_k` and the n - 1 after it are the members."""
    a = space.home[from_k]
    group = looked[a]
    first = groups.id.shape[0] + JOBS_MOST
    ks = np.empty(MOVES_MOST, np.int64)
    goes = np.empty(MOVES_MOST, np.int64)
    for i in range(n):
        at = i
        while at > 0 and jobs.solo_s[space.movers[ks[at - 1]]] < jobs.solo_s[space.movers[from_k + i]]:
            ks[at] = ks[at - 1]
            at -= 1
        ks[at] = from_k + i
    usd = 0.0
    new = 0
    touched = 0
    placed = 0
    pins = np.empty((MOVES_MOST, jobs.pins.shape[1]), np.int64)
    was = np.empty((MOVES_MOST, 5))
    while placed < n:
        k = ks[placed]
        job = space.movers[k]
        best = space.trial[placed]
        best.ok = 0
        best.usd = np.inf
        to = -1
        for b in range(looked.shape[0]):
            at = -1
            for t in range(touched):
                if space.touched[t] == b:
                    at = t
            if b != a and at < 0 and space.joins[k, b].ok == 1 and space.joins[k, b].usd < best.usd:
                space.trial[placed] = space.joins[k, b]
                to = b
        for t in range(touched):
            place = space.alone[k]  # not of use any more once the mergers are looked at
            place.ok = 0
            if may_join(space.copies[first + t], jobs[job], limits, terms.shield):
                best_place(jobs, space.copies, limits, stays, terms, first + t, job, space.sums[t], space.scratch, place)
            if place.ok == 1 and (place.usd < best.usd or (place.usd == best.usd and space.touched[t] < to)):
                space.trial[placed] = place
                to = space.touched[t]
        if to < 0 or terms.rollout_nodes + new + best.new_nodes > limits.rollout_nodes_max:
            break
        goes[placed] = to
        usd += best.usd
        new += best.new_nodes
        if placed + 1 < n:
            at = touched
            for t in range(touched):
                if space.touched[t] == to:
                    at = t
            if at == touched:
                touched += 1
                space.touched[at] = to
                copy_group(jobs, groups, looked[to], -1, space.copies, first + at)
                space.sums[at] = space.base[to]
            for v in range(space.sums.shape[1]):
                space.sums[at, v] += best.more[v]
            pins[placed] = jobs.pins[job]
            was[placed, 0] = jobs.n_pins[job]
            was[placed, 1] = jobs.placed_training_s[job]
            was[placed, 2] = stays.stay_h[job]
            was[placed, 3] = stays.pause_h[job]
            was[placed, 4] = stays.left[job]
            taken = jobs.rollout_nodes[job] - best.new_nodes
            numbers = best.nodes.copy()
            attach(jobs, space.copies, job, first + at, numbers[:taken], best.new_nodes)
            stays.stay_h[job] += terms.migration_h
            stays.pause_h[job] = terms.migration_h
            stays.left[job] *= np.exp(-terms.migration_h / HORIZONS_H[2])
            forget(stays)
        placed += 1
    for i in range(min(placed, n - 1)):
        job = space.movers[ks[i]]
        jobs.group[job] = group
        jobs.pins[job] = pins[i]
        jobs.n_pins[job] = int(was[i, 0])
        jobs.placed_training_s[job] = was[i, 1]
        stays.stay_h[job] = was[i, 2]
        stays.pause_h[job] = was[i, 3]
        stays.left[job] = was[i, 4]
    forget(stays)
    if placed < n:
        return
    rollout, training = groups.n_nodes[group], groups.training_nodes[group]
    price = (rollout * limits.rollout_usd + training * limits.training_usd) * terms.migration_h
    at = offer(space, found, net_usd(space.base[a]) - usd - price)
    if at < 0:
        return
    row = space.kept[at]
    space.scratch.values[:] = 0.0
    begin_row(row, MERGER)
    change_group(row, limits, terms, rollout, training, space.base[a], space.scratch.values)
    for i in range(n):
        add_move(row, jobs, limits, space.movers[ks[i]], looked[goes[i]], space.trial[i])
        seen = False
        for j in range(i):
            seen = seen or goes[j] == goes[i]
        if not seen:
            keep_group(row, space.base[goes[i]])
