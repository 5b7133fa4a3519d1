"""What may be done in a group at a decision, and what strict round robin would do.

The rules are those of `rollmux_env.scheduler.dispatcher` and `policies.dispatch`. Of M members row 0 waits; row k + 1 starts the
phase that member k waits for, or migrates the tail of its rollout; row M + k + 1 starts the training of member k if it is stale,
for it may wait beside its rollout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.types import NOTHING, ROLLOUT, TRAINING, TRAINING_POOL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Records


@compiled(arrays=False)
def nodes_of(member: Records, phase: int) -> Any:
    """The nodes of a member's phase, a bit each."""
    return TRAINING_POOL if phase == TRAINING or member.nodes == 0 else member.nodes


@compiled(arrays=False)
def waits_for(member: Records, phase: int) -> bool:
    """Whether a member waits for its rollout, or for its training."""
    return bool(member.waits == phase or (phase == TRAINING and member.beside_waits != 0))


@compiled(arrays=False)
def number_of(member: Records, phase: int) -> Any:
    """The number of the phase that a member waits for."""
    return member.beside_number if phase == TRAINING and member.staleness > 0 else member.number


@compiled(arrays=False)
def movable(group: Records, members: Records, k: int) -> bool:
    """Whether the tail of member k may migrate, as `Dispatcher.movable` says."""
    m = members[k]
    if m.passed == 0 or m.runs != ROLLOUT or m.nodes == 0 or m.nodes & group.tails != 0:
        return False
    for j in range(group.n):  # noqa: SIM110 (numba has no generator expressions)
        if members[j].waits == ROLLOUT and nodes_of(members[j], ROLLOUT) & m.nodes != 0:
            return True
    return False


@compiled(arrays=False)
def _overdue_before(group: Records, members: Records, number: int) -> int:
    """The nodes that are kept for overdue phases that became ready before one of a number."""
    n, nodes = group.n, 0
    for j in range(n):
        o = members[j]
        if o.waits != NOTHING and o.overtaken >= n and o.number < number:
            nodes |= nodes_of(o, o.waits)
        if o.beside_waits != 0 and o.beside_overtaken >= n and o.beside_number < number:
            nodes |= TRAINING_POOL
    return nodes


@compiled(arrays=False)
def write_mask(group: Records, members: Records, mask: NDArray[np.int8]) -> int:
    """Write which rows may be chosen; returns how many that are not the one that waits.

    A phase may start whose nodes are free. One that was overtaken as often as the group has members is overdue: its nodes are kept
    for it, the oldest first, and while it could start nobody waits. Nor does anybody while nothing runs.
    """
    mask[:] = 0
    n, beside = group.n, len(members) + 1
    runs, overdue, must = False, 0, False
    for k in range(n):
        m = members[k]
        runs = runs or m.runs != NOTHING or m.beside_runs != 0
        if m.waits != NOTHING and m.overtaken >= n:
            nodes = nodes_of(m, m.waits)
            overdue |= nodes
            if nodes & (group.busy | _overdue_before(group, members, m.number)) == 0:
                mask[k + 1] = 1
                must = True
        if m.beside_waits != 0 and m.beside_overtaken >= n:
            overdue |= TRAINING_POOL
            if TRAINING_POOL & (group.busy | _overdue_before(group, members, m.beside_number)) == 0:
                mask[beside + k] = 1
                must = True
    count = 0
    for k in range(n):
        m = members[k]
        free = m.waits != NOTHING and m.overtaken < n and nodes_of(m, m.waits) & (group.busy | overdue) == 0
        if free or movable(group, members, k):
            mask[k + 1] = 1
        count += mask[k + 1]
        if m.beside_waits != 0:
            if m.beside_overtaken < n and TRAINING_POOL & (group.busy | overdue) == 0:
                mask[beside + k] = 1
            count += mask[beside + k]
    mask[0] = runs and not must
    return count


@compiled(arrays=False)
def in_turn(group: Records, members: Records, k: int, phase: int, handing: bool) -> bool:
    """Whether nobody comes before a phase that member k waits for in strict round robin, once all movable tails have left or as it
    is."""
    m = members[k]
    rollout = phase == ROLLOUT
    nodes = nodes_of(m, phase)
    for j in range(group.n):
        o = members[j]
        if nodes_of(o, phase) & nodes != 0:
            ahead = o.turn_rollout - m.turn_rollout if rollout else o.turn_training - m.turn_training
            if handing and movable(group, members, j):
                ahead += 1
            if ahead < 0 or (ahead == 0 and j < k):
                return False
    return True


@compiled(arrays=False)
def round_robin(group: Records, members: Records, migrates: bool) -> int:
    """The row that `policies.dispatch.round_robin` chooses; 0 where it waits."""
    n, busy = group.n, group.busy
    best, first = 0, np.iinfo(np.int64).max
    for k in range(n):
        m = members[k]
        if m.waits != NOTHING and m.number < first and nodes_of(m, m.waits) & busy == 0:  # noqa: SIM102 (in_turn is dear)
            if in_turn(group, members, k, m.waits, False):
                best, first = k + 1, m.number
        if m.beside_waits != 0 and m.beside_number < first and TRAINING_POOL & busy == 0:  # noqa: SIM102
            if in_turn(group, members, k, TRAINING, False):
                best, first = len(members) + k + 1, m.beside_number
    if best > 0 or not migrates:
        return best
    freed = 0
    for k in range(n):
        if movable(group, members, k):
            freed |= members[k].nodes
    wanted = 0
    for k in range(n):
        m = members[k]
        could = m.waits == ROLLOUT and m.nodes & freed != 0 and m.nodes & busy & ~freed == 0
        if could and m.number < first and in_turn(group, members, k, ROLLOUT, True):
            wanted, first = m.nodes, m.number
    for k in range(n):
        if members[k].nodes & wanted != 0 and movable(group, members, k):
            return k + 1
    return 0
