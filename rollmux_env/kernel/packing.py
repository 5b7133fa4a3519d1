"""The least period of a set of jobs on given numbers of nodes, over all pinnings and member orders.

Rollout nodes with the same pinned members are interchangeable, so a pinning is a number of nodes for every set of members: a
class. The search places one member after the other: on some nodes of each existing class, and on new nodes for the rest.

Without sync and with one rollout node a member the order does not matter: the period is the larger of cycles and loads. Otherwise
the orders are searched too, by inserting one member after the other. Taking a member out of an order never lengthens the period
(its arcs are replaced by shorter ones), so an order whose beginning is too slow is excluded. The first member is fixed, because
rotating an order only shifts tokens from the arcs into a member to the arcs out of it. Without sync, and if all members are
equally stale, the reversed order has the same period (reversing every arc, and delaying all trainings by 1 + staleness
meta-iterations, gives the reversed order's graph).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.period import PHASES, cycle_of, exact_period
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints, Records

_MEMBER = np.dtype([("gb", "f8"), ("device_gb", "f8"), ("nodes", "i8"), ("order", "i8")])
_CLASS = np.dtype([("mask", "i8"), ("nodes", "i8"), ("take", "i8"), ("load_s", "f8"), ("load_gb", "f8"), ("load_device_gb", "f8")])
_LEVEL = np.dtype([("classes", "i8"), ("used", "i8"), ("new", "i8"), ("top_s", "f8"), ("place", "i8")])


class Packing(NamedTuple):
    """Scratch and result of the search, for M members and C classes of rollout nodes.

    Attributes:
        phases: (PHASES, M) the members' phases, as `rollmux_env.kernel.period` has them.
        members: (M,) records. `gb` and `device_gb` are the rollout memory of a node and of each of its GPUs, GB; `nodes` is the
            number of rollout nodes that each asks for; `order` is the best order found, as positions of members.
        best: (C,) classes of the best pinning.
        best_count: (1,) number of the classes in `best`.
        classes: (M + 1, C) records: the classes before the member of that level is placed. `mask` has the members as bits; `nodes`
            is the number of nodes; `take` is the number of them that the member uses; `load_s`, `load_gb` and `load_device_gb` are
            rollout seconds and memory on a node.
        levels: (M + 1,) records. `classes`, `used` and `new` are numbers of classes, of rollout nodes, and of the member's new
            nodes; `top_s` is the largest load; `place` is the position of the last member of a partial order.
        sequence: (M + 1, M) partial orders.
        ordered: (PHASES, M) phases in the order tried.
        pinned: (M, C) pins in the order tried.
    """

    phases: Floats
    members: Records
    best: Records
    best_count: Ints
    classes: Records
    levels: Records
    sequence: Ints
    ordered: Floats
    pinned: Ints


def packing(members: int, rollout_nodes: int) -> Packing:
    """Return room for groups of up to `members` jobs that ask for up to `rollout_nodes` rollout nodes together."""
    m, classes = members, max(1, min(rollout_nodes, 2 ** min(members, 20)))
    return Packing(
        phases=np.zeros((PHASES, m)),
        members=np.zeros(m, _MEMBER),
        best=np.zeros(classes, _CLASS),
        best_count=np.zeros(1, np.int64),
        classes=np.zeros((m + 1, classes), _CLASS),
        levels=np.zeros(m + 1, _LEVEL),
        sequence=np.zeros((m + 1, m), np.int64),
        ordered=np.zeros((PHASES, m)),
        pinned=np.zeros((m, classes), np.int64),
    )


@compiled(arrays=False)
def least_period(p: Packing, n: int, r: int, pool: Records, limit_s: float) -> float:
    """Return the least period of the first `n` jobs in `p` on at most `r` rollout nodes.

    Args:
        p: Members, scratch and result.
        n: Number of members.
        r: Maximum number of rollout nodes.
        pool: Pool of the rollout nodes, a record of `rollmux_env.kernel.tables.POOL`.
        limit_s: Longest period that is accepted.

    Returns:
        Seconds, infinite if no period is within `limit_s`; then the earlier result stays in `p`.
    """
    longest, floor, levels = limit_s * (1.0 + TOLERANCE), least_bound(p, n), p.levels
    general = False
    for i in range(n):
        general = general or p.phases[2, i] > 0.0 or p.members[i].nodes > 1
    best = np.inf
    if floor > longest:
        return best
    levels[0].classes = levels[0].used = 0
    levels[0].top_s = floor
    level = 0
    _begin(p, 0)
    while level >= 0:
        if not _next_take(p, level, r, pool, longest):
            level -= 1
            continue
        _place(p, level)
        level += 1
        if levels[level].top_s >= best:
            level -= 1
        elif level < n:
            _begin(p, level)
        else:
            period = levels[n].top_s
            if general and n > 1:
                period = _best_order(p, n, period, min(longest, best))
            if period < best:
                best = period
                _store_best(p, n, general and n > 1)
            if best <= floor:
                return best
            level -= 1
    return best


@compiled(arrays=False)
def least_bound(p: Packing, n: int) -> float:
    """Return the larger of the first `n` jobs' own cycles and the sum of their trainings, seconds: never above their period."""
    floor = 0.0
    trainings = 0.0
    for i in range(n):
        floor = max(floor, cycle_of(p.phases, i))
        trainings += p.phases[1, i]
    return max(floor, trainings)


@compiled(arrays=False)
def _store_best(p: Packing, n: int, ordered: bool) -> None:
    """Store the pinning at level `n` as the best so far, with the order that was found, or with any order."""
    for i in range(n):
        if not ordered:
            p.members[i].order = i
    p.best_count[0] = p.levels[n].classes
    for c in range(p.levels[n].classes):
        p.best[c] = p.classes[n, c]


@compiled(arrays=False)
def _begin(p: Packing, level: int) -> None:
    for c in range(p.levels[level].classes):
        p.classes[level, c].take = 0
    p.levels[level].new = -1  # nothing tried yet


@compiled(arrays=False)
def _next_take(p: Packing, level: int, r: int, pool: Records, longest: float) -> bool:
    """Advance to the next way to place the member of this level; False at the end."""
    at, needed = p.levels[level], p.members[level].nodes
    taken = 0
    for c in range(at.classes):
        taken += p.classes[level, c].take
    if at.new == -1:
        at.new = needed
        if at.used + needed <= r:
            return True
    while True:
        c = at.classes - 1
        while c >= 0:
            if taken < needed and _may_add_node(p, level, c, pool, longest):
                p.classes[level, c].take += 1
                taken += 1
                break
            taken -= p.classes[level, c].take
            p.classes[level, c].take = 0
            c -= 1
        if c < 0:
            return False
        at.new = needed - taken
        if at.used + at.new <= r:
            return True


@compiled(arrays=False)
def _may_add_node(p: Packing, level: int, c: int, pool: Records, longest: float) -> bool:
    """Return whether the member of a level may take one more node of a class."""
    node_class, member = p.classes[level, c], p.members[level]
    return bool(
        node_class.take < node_class.nodes
        and node_class.load_s + p.phases[0, level] <= longest
        and node_class.load_gb + member.gb <= pool.node_gb * (1.0 + TOLERANCE)
        and node_class.load_device_gb + member.device_gb <= pool.device_gb * (1.0 + TOLERANCE)
    )


@compiled(arrays=False)
def _place(p: Packing, level: int) -> None:
    """Write the classes of the next level: every class splits into the nodes that the member takes and those that it does not."""
    at, above, member = p.levels[level], p.levels[level + 1], p.members[level]
    k = 0
    top = max(at.top_s, p.phases[0, level])
    for c in range(at.classes):
        node_class = p.classes[level, c]
        if node_class.take > 0:
            p.classes[level + 1, k] = node_class
            shared = p.classes[level + 1, k]
            shared.mask |= 1 << level
            shared.nodes = node_class.take
            shared.load_s += p.phases[0, level]
            shared.load_gb += member.gb
            shared.load_device_gb += member.device_gb
            top = max(top, shared.load_s)
            k += 1
        if node_class.take < node_class.nodes:
            p.classes[level + 1, k] = node_class
            p.classes[level + 1, k].nodes -= node_class.take
            k += 1
    if at.new > 0:
        own = p.classes[level + 1, k]
        own.mask, own.nodes = 1 << level, at.new
        own.load_s, own.load_gb, own.load_device_gb = p.phases[0, level], member.gb, member.device_gb
        k += 1
    above.classes = k
    above.used = at.used + at.new
    above.top_s = top


@compiled(arrays=False)
def _is_mirrored(p: Packing, n: int) -> bool:
    """Return whether an order of the members and its reverse have the same period."""
    mirrored = n > 2
    for i in range(n):
        mirrored = mirrored and p.phases[2, i] == 0.0 and p.phases[3, i] == p.phases[3, 0]
    return bool(mirrored)


@compiled(arrays=False)
def _best_order(p: Packing, n: int, bound: float, longest: float) -> float:
    """Return the least period over the member orders of the pinning at level `n`, and write the best one to the members' `order`.

    It is infinite if all are above `longest`. The caller checks whether the result is better than its own.
    """
    mirrored = _is_mirrored(p, n)
    best = np.inf
    p.sequence[1, 0] = 0
    level = 1
    p.levels[1].place = 0
    while level >= 1:
        p.levels[level].place += 1
        # Member number `level` goes behind `place` others; of an order and its reverse only one has member 2 behind member 1.
        first_out = level + 1 if level != 2 or not mirrored else 2
        at = p.levels[level].place
        if at >= first_out:
            level -= 1
            continue
        for k in range(level + 1):
            p.sequence[level + 1, k] = level if k == at else p.sequence[level, k if k < at else k - 1]
        period = _period_of(p, level + 1, n)
        if period > longest or period >= best:
            continue
        if level + 1 < n:
            level += 1
            p.levels[level].place = 0
        else:
            best = period
            for k in range(n):
                p.members[k].order = p.sequence[n, k]
            if best <= bound:
                return best
    return best


@compiled(arrays=False)
def _period_of(p: Packing, m: int, n: int) -> float:
    """Return the exact period of the partial order of `m` members, with the pins that they have among all `n`."""
    bound = 0.0
    trainings = 0.0
    for k in range(m):
        for row in range(len(p.phases)):
            p.ordered[row, k] = p.phases[row, p.sequence[m, k]]
        trainings += p.ordered[1, k]
        bound = max(bound, cycle_of(p.ordered, k))
    bound = max(bound, trainings)
    shared = 0
    for c in range(p.levels[n].classes):
        load = 0.0
        pins = 0
        for k in range(m):
            pinned = (p.classes[n, c].mask >> p.sequence[m, k]) & 1
            p.pinned[k, shared] = pinned
            pins += pinned
            load += pinned * p.ordered[0, k]
        bound = max(bound, load)
        if pins > 1:
            shared += 1
    return exact_period(p.ordered, p.pinned, m, shared, bound)
