"""What may be done in a group at a decision, and what strict round robin would do.

The rules are those of `rollmux_env.scheduler.dispatcher` and `policies.dispatch`. Row 0 waits; row k + 1 starts the phase that
member k waits for, or migrates the tail of its rollout.
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
def write_mask(group: Records, members: Records, mask: NDArray[np.int8]) -> int:
    """Write which rows may be chosen; returns how many that are not the one that waits.

    A phase may start whose nodes are free. One that was overtaken as often as the group has members is overdue: its nodes are kept
    for it, the oldest first, and while it could start nobody waits. Nor does anybody while nothing runs.
    """
    mask[:] = 0
    n = group.n
    runs, overdue, must = False, 0, False
    for k in range(n):
        m = members[k]
        runs = runs or m.runs != NOTHING
        if m.waits != NOTHING and m.overtaken >= n:
            nodes, older = nodes_of(m, m.waits), 0
            for j in range(n):
                o = members[j]
                if o.waits != NOTHING and o.overtaken >= n and o.number < m.number:
                    older |= nodes_of(o, o.waits)
            overdue |= nodes
            if nodes & (group.busy | older) == 0:
                mask[k + 1] = 1
                must = True
    count = 0
    for k in range(n):
        m = members[k]
        free = m.waits != NOTHING and m.overtaken < n and nodes_of(m, m.waits) & (group.busy | overdue) == 0
        if free or movable(group, members, k):
            mask[k + 1] = 1
        count += mask[k + 1]
    mask[0] = runs and not must
    return count


@compiled(arrays=False)
def in_turn(group: Records, members: Records, k: int, handing: bool) -> bool:
    """Whether nobody comes before member k's waiting phase in strict round robin, once all movable tails have left or as it is."""
    m = members[k]
    rollout = m.waits == ROLLOUT
    nodes = nodes_of(m, m.waits)
    for j in range(group.n):
        o = members[j]
        if nodes_of(o, m.waits) & nodes != 0:
            ahead = o.turn_rollout - m.turn_rollout if rollout else o.turn_training - m.turn_training
            if handing and movable(group, members, j):
                ahead += 1
            if ahead < 0 or (ahead == 0 and j < k):
                return False
    return True


@compiled(arrays=False)
def round_robin(group: Records, members: Records, migrates: bool) -> int:
    """The row that `policies.dispatch.round_robin` chooses; 0 where it waits."""
    n = group.n
    best, first = -1, np.iinfo(np.int64).max
    for k in range(n):
        m = members[k]
        if m.waits != NOTHING and m.number < first and nodes_of(m, m.waits) & group.busy == 0 and in_turn(group, members, k, False):
            best, first = k, m.number
    if best >= 0 or not migrates:
        return best + 1
    freed = 0
    for k in range(n):
        if movable(group, members, k):
            freed |= members[k].nodes
    for k in range(n):
        m = members[k]
        could = m.waits == ROLLOUT and m.nodes & freed != 0 and m.nodes & group.busy & ~freed == 0
        if could and m.number < first and in_turn(group, members, k, True):
            best, first = k, m.number
    if best < 0:
        return 0
    for k in range(n):
        if movable(group, members, k) and members[k].nodes & members[best].nodes != 0:
            return k + 1
    return 0
