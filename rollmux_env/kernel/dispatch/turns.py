"""Choices in a group, and strict round robin. See `rules`."""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.dispatch.rows import ABSENT, NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL, WAITS, GroupRow, MemberRow

Members = Sequence[MemberRow]
_MARGIN = 1.2


def awaited_nodes(group: GroupRow, members: Members) -> int:
    """Return the nodes that rollouts wait for."""
    nodes = 0
    for k in range(group.n):
        if members[k].waits_rollout == WAITS:
            nodes |= members[k].nodes
    return nodes


def movable(group: GroupRow, m: MemberRow, awaited_nodes: int) -> bool:
    """Return whether a member's tail may migrate: past the threshold, on nodes that a rollout waits for and no other tail uses."""
    return m.passed != 0 and m.rolls == ROLLOUT and m.nodes & awaited_nodes != 0 and m.nodes & group.tails == 0


def hand_over(group: GroupRow, members: Members, careful: bool) -> int:
    """Mark the members whose tails may migrate, and return the set of nodes that they would leave.

    If `careful` is True, the member that the group waits for is not marked.
    """
    nodes, freed = awaited_nodes(group, members), 0
    for k in range(group.n):
        m = members[k]
        m.handing = 0
        if movable(group, m, nodes) and not (careful and is_bound(group, members, m)):
            m.handing = 1
            freed |= m.nodes
    return freed


def is_bound(group: GroupRow, members: Members, m: MemberRow) -> bool:
    """Return whether a group is as slow as this member is alone, by expected seconds.

    Its cycle is then clearly longer than any other's, and the load of its rollout nodes exceeds it by little at most.
    """
    others_s, load_s = 0.0, 0.0
    for k in range(group.n):
        o = members[k]
        if o.order != m.order:
            others_s = max(others_s, alone_s(o.rollout_s, o.training_s, o.sync_s, o.staleness))
        if o.nodes & m.nodes != 0:
            load_s += o.rollout_s
    own_s = alone_s(m.rollout_s, m.training_s, m.sync_s, m.staleness)
    return own_s > _MARGIN * others_s and _MARGIN * own_s > load_s


def overdue_before(group: GroupRow, members: Members, number: int) -> int:
    """Return the nodes that are kept for overdue phases which became ready before request `number`.

    A phase is overdue if it was overtaken as often as the group has members.
    """
    nodes = 0
    for k in range(group.n):
        o = members[k]
        if o.waits_rollout == WAITS and o.rollout_overtaken >= group.n and o.rollout_number < number:
            nodes |= o.nodes
        if o.waits_training == WAITS and o.training_overtaken >= group.n and o.training_number < number:
            nodes |= TRAINING_POOL
    return nodes


def in_turn(group: GroupRow, members: Members, m: MemberRow, phase: int, handed: int) -> bool:
    """Return whether no other phase precedes a member's phase in strict round robin.

    `handed` is 1 once the marked tails have left.
    """
    order, nodes = m.order, m.nodes
    if phase == TRAINING:
        own = m.turn_training
        for k in range(group.n):
            o = members[k]
            if o.turn_training <= own and (o.turn_training < own or o.order < order):
                return False
        return True
    own = m.turn_rollout
    for k in range(group.n):
        o = members[k]
        turn = o.turn_rollout + handed * o.handing
        if turn <= own and (turn < own or o.order < order) and o.nodes & nodes != 0:
            return False
    return True


def round_robin(group: GroupRow, members: Members, migrates: bool, careful: bool) -> tuple[int, int]:
    """Choose the next step of strict round robin.

    It is the first waiting phase whose turn it is on all its nodes, else a tail that blocks the next one.

    Returns:
        The row of a member, and the phase that it begins, or `TAIL`; `NOTHING` if no member acts.
    """
    best, what, first, busy = 0, NOTHING, ABSENT, group.busy
    for k in range(group.n):
        m = members[k]
        if m.waits_rollout == WAITS and m.rollout_number < first and m.nodes & busy == 0:  # noqa: SIM102 (in_turn is expensive)
            if in_turn(group, members, m, ROLLOUT, 0):
                best, what, first = k, ROLLOUT, m.rollout_number
        if m.waits_training == WAITS and m.training_number < first and TRAINING_POOL & busy == 0:  # noqa: SIM102
            if in_turn(group, members, m, TRAINING, 0):
                best, what, first = k, TRAINING, m.training_number
    return tail_in_the_way(group, members, careful) if what == NOTHING and migrates else (best, what)


def tail_in_the_way(group: GroupRow, members: Members, careful: bool) -> tuple[int, int]:
    """Return the tail that must leave its nodes for the first waiting rollout whose turn it is then, as `round_robin` does."""
    freed, nodes, first = hand_over(group, members, careful), 0, ABSENT
    for k in range(group.n):
        m = members[k]
        could = m.waits_rollout == WAITS and m.nodes & freed != 0 and m.nodes & group.busy & ~freed == 0
        if could and m.rollout_number < first and in_turn(group, members, m, ROLLOUT, 1):
            nodes, first = m.nodes, m.rollout_number
    for k in range(group.n):
        if members[k].handing != 0 and members[k].nodes & nodes != 0:
            return k, TAIL
    return 0, NOTHING
