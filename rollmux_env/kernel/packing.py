"""The least period of a set of jobs on given numbers of nodes, over all pinnings and member orders.

Rollout nodes with the same pinned members are interchangeable, so a pinning is a number of nodes for every set of members: a
class. The search places one member after the other: some nodes of each class that is there, the rest on new nodes.

Without sync and with one rollout node a member the order does not matter: the period is the larger of cycles and loads. Otherwise
the orders are searched too, by inserting one member after the other: taking a member out of an order never lengthens the period
(its arcs are replaced by shorter ones), so an order whose beginning is too slow is out. The first member is fixed, because rotating
an order only shifts tokens from the arcs into a member to the arcs out of it; without sync, and where all members are equally
stale, the reversed order has the same period (reversing every arc, and delaying all trainings by 1 + staleness meta-iterations,
gives the reversed order's graph).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.period import exact_period, own_period
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints, Records


class Packing(NamedTuple):
    """Room for the search, and what it found. Shapes: M members, C classes of rollout nodes.

    Attributes:
        rollout_s, training_s, sync_s, staleness, gb, device_gb: (M,) the members' phases, seconds, staleness, and rollout memory of
            a node and of each of its GPUs, GB.
        nodes: (M,) rollout nodes that each member asks for.
        order: (M,) best order found, as positions in the arrays above.
        classes: (1,) how many classes of rollout nodes the best pinning has.
        best_mask, best_nodes: (C,) members of each class as bits, and how many nodes it has.
        mask, class_nodes, take: (M + 1, C) classes before the member of that level is placed, their nodes, and how many of them it
            takes.
        load_s, load_gb, load_device_gb: (M + 1, C) rollout seconds and memory on a node of each class.
        n_classes, used, new: (M + 1,) classes, rollout nodes, and the member's own new nodes of each level.
        top_s: (M + 1,) largest load of each level.
        sequence: (M + 1, M) partial orders; place: (M + 1,) where the last member was put.
        ordered: (4, M) phases in the order tried; pinned: (M, C) its pins.
    """

    rollout_s: Floats
    training_s: Floats
    sync_s: Floats
    staleness: Floats
    gb: Floats
    device_gb: Floats
    nodes: Ints
    order: Ints
    classes: Ints
    best_mask: Ints
    best_nodes: Ints
    mask: Ints
    class_nodes: Ints
    take: Ints
    load_s: Floats
    load_gb: Floats
    load_device_gb: Floats
    n_classes: Ints
    used: Ints
    new: Ints
    top_s: Floats
    sequence: Ints
    place: Ints
    ordered: Floats
    pinned: Ints


def packing(members: int, rollout_nodes: int) -> Packing:
    """Room for groups of up to `members` jobs that ask for up to `rollout_nodes` rollout nodes together."""
    m = members
    c = max(1, min(rollout_nodes, 2 ** min(members, 20)))

    def floats(*shape: int) -> Floats:
        return np.zeros(shape)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return Packing(
        rollout_s=floats(m),
        training_s=floats(m),
        sync_s=floats(m),
        staleness=floats(m),
        gb=floats(m),
        device_gb=floats(m),
        nodes=ints(m),
        order=ints(m),
        classes=ints(1),
        best_mask=ints(c),
        best_nodes=ints(c),
        mask=ints(m + 1, c),
        class_nodes=ints(m + 1, c),
        take=ints(m + 1, c),
        load_s=floats(m + 1, c),
        load_gb=floats(m + 1, c),
        load_device_gb=floats(m + 1, c),
        n_classes=ints(m + 1),
        used=ints(m + 1),
        new=ints(m + 1),
        top_s=floats(m + 1),
        sequence=ints(m + 1, m),
        place=ints(m + 1),
        ordered=floats(4, m),
        pinned=ints(m, c),
    )


@compiled(arrays=False)
def least_period(p: Packing, n: int, r: int, pool: Records, limit_s: float) -> float:
    """Least period of the first `n` jobs in `p` on at most `r` rollout nodes.

    Args:
        pool: of the rollout nodes, a record of `rollmux_env.kernel.tables.POOL`.
        limit_s: longest period that is of use.

    Returns:
        Seconds, infinite where none keeps to `limit_s`; then what was found before stays in `p`.
    """
    longest = limit_s * (1.0 + TOLERANCE)
    floor = 0.0
    trainings = 0.0
    general = False
    for i in range(n):
        floor = max(floor, own_period(p.rollout_s[i], p.training_s[i], p.sync_s[i], p.staleness[i]))
        trainings += p.training_s[i]
        if p.sync_s[i] > 0.0 or p.nodes[i] > 1:
            general = True
    floor = max(floor, trainings)
    best = np.inf
    if floor > longest:
        return best
    p.n_classes[0] = 0
    p.used[0] = 0
    p.top_s[0] = floor
    level = 0
    _begin(p, 0)
    while level >= 0:
        if not _next_take(p, level, r, pool, longest):
            level -= 1
            continue
        _place(p, level)
        level += 1
        if p.top_s[level] >= best:
            level -= 1
        elif level < n:
            _begin(p, level)
        else:
            period = p.top_s[n]
            is_better = True
            if general and n > 1:
                period = _best_order(p, n, period, min(longest, best))
                is_better = period < best
            if is_better:
                best = period
                if not (general and n > 1):
                    for i in range(n):
                        p.order[i] = i
                p.classes[0] = p.n_classes[n]
                for c in range(p.n_classes[n]):
                    p.best_mask[c] = p.mask[n, c]
                    p.best_nodes[c] = p.class_nodes[n, c]
            if best <= floor:
                return best
            level -= 1
    return best


@compiled(arrays=False)
def _begin(p: Packing, level: int) -> None:
    for c in range(p.n_classes[level]):
        p.take[level, c] = 0
    p.new[level] = -1  # nothing tried yet


@compiled(arrays=False)
def _next_take(p: Packing, level: int, r: int, pool: Records, longest: float) -> bool:
    """Advance to the next way to place the member of this level; False at the end."""
    k = p.n_classes[level]
    wanted = p.nodes[level]
    taken = 0
    for c in range(k):
        taken += p.take[level, c]
    if p.new[level] == -1:
        p.new[level] = wanted
        if p.used[level] + wanted <= r:
            return True
    while True:
        c = k - 1
        while c >= 0:
            fits = (
                taken < wanted
                and p.take[level, c] < p.class_nodes[level, c]
                and p.load_s[level, c] + p.rollout_s[level] <= longest
                and p.load_gb[level, c] + p.gb[level] <= pool.node_gb * (1.0 + TOLERANCE)
                and p.load_device_gb[level, c] + p.device_gb[level] <= pool.device_gb * (1.0 + TOLERANCE)
            )
            if fits:
                p.take[level, c] += 1
                taken += 1
                break
            taken -= p.take[level, c]
            p.take[level, c] = 0
            c -= 1
        if c < 0:
            return False
        p.new[level] = wanted - taken
        if p.used[level] + p.new[level] <= r:
            return True


@compiled(arrays=False)
def _place(p: Packing, level: int) -> None:
    """Write the classes of the next level: every class splits into the nodes that the member takes and those that it does not."""
    above = level + 1
    bit = 1 << level
    k = 0
    top = max(p.top_s[level], p.rollout_s[level])
    for c in range(p.n_classes[level]):
        taken = p.take[level, c]
        if taken > 0:
            p.mask[above, k] = p.mask[level, c] | bit
            p.class_nodes[above, k] = taken
            p.load_s[above, k] = p.load_s[level, c] + p.rollout_s[level]
            p.load_gb[above, k] = p.load_gb[level, c] + p.gb[level]
            p.load_device_gb[above, k] = p.load_device_gb[level, c] + p.device_gb[level]
            top = max(top, p.load_s[above, k])
            k += 1
        if taken < p.class_nodes[level, c]:
            p.mask[above, k] = p.mask[level, c]
            p.class_nodes[above, k] = p.class_nodes[level, c] - taken
            p.load_s[above, k] = p.load_s[level, c]
            p.load_gb[above, k] = p.load_gb[level, c]
            p.load_device_gb[above, k] = p.load_device_gb[level, c]
            k += 1
    if p.new[level] > 0:
        p.mask[above, k] = bit
        p.class_nodes[above, k] = p.new[level]
        p.load_s[above, k] = p.rollout_s[level]
        p.load_gb[above, k] = p.gb[level]
        p.load_device_gb[above, k] = p.device_gb[level]
        k += 1
    p.n_classes[above] = k
    p.used[above] = p.used[level] + p.new[level]
    p.top_s[above] = top


@compiled(arrays=False)
def _best_order(p: Packing, n: int, bound: float, longest: float) -> float:
    """Least period over the member orders of the pinning at level `n`, written into `p.order`.

    Infinite where all are above `longest`; the caller asks again whether the result is better than what it has.
    """
    mirrored = n > 2
    for i in range(n):
        if p.sync_s[i] > 0.0 or p.staleness[i] != p.staleness[0]:
            mirrored = False
    best = np.inf
    p.sequence[1, 0] = 0
    level = 1
    p.place[1] = 0
    while level >= 1:
        p.place[level] += 1
        # Member number `level` goes behind `place` others; of an order and its reverse only one has member 2 behind member 1.
        first_out = level + 1 if level != 2 or not mirrored else 2
        if p.place[level] >= first_out:
            level -= 1
            continue
        at = p.place[level]
        for k in range(at):
            p.sequence[level + 1, k] = p.sequence[level, k]
        p.sequence[level + 1, at] = level
        for k in range(at, level):
            p.sequence[level + 1, k + 1] = p.sequence[level, k]
        period = _period_of(p, level + 1, n)
        if period > longest or period >= best:
            continue
        if level + 1 < n:
            level += 1
            p.place[level] = 0
        else:
            best = period
            for k in range(n):
                p.order[k] = p.sequence[n, k]
            if best <= bound:
                return best
    return best


@compiled(arrays=False)
def _period_of(p: Packing, m: int, n: int) -> float:
    """Exact period of the partial order of `m` members, with the pins that they have among all `n`."""
    bound = 0.0
    trainings = 0.0
    for k in range(m):
        i = p.sequence[m, k]
        p.ordered[0, k] = p.rollout_s[i]
        p.ordered[1, k] = p.training_s[i]
        p.ordered[2, k] = p.sync_s[i]
        p.ordered[3, k] = p.staleness[i]
        trainings += p.training_s[i]
        bound = max(bound, own_period(p.rollout_s[i], p.training_s[i], p.sync_s[i], p.staleness[i]))
    bound = max(bound, trainings)
    shared = 0
    for c in range(p.n_classes[n]):
        load = 0.0
        pins = 0
        for k in range(m):
            pinned = (p.mask[n, c] >> p.sequence[m, k]) & 1
            p.pinned[k, shared] = pinned
            pins += pinned
            load += pinned * p.ordered[0, k]
        bound = max(bound, load)
        if pins > 1:
            shared += 1
    return exact_period(p.ordered, p.pinned, m, shared, bound)
