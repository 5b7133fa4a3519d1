"""What happens in a co-execution group: who joins, is ready, gets its nodes, gives them back, is away and goes.

A member is a cycle: rollout on all the rollout nodes that it is pinned to, training on all of the group's training nodes, sync, and
again. A permit is given for all nodes of a phase at once, so nobody holds one node while it waits for another: there is no deadlock
whatever a policy chooses. A stale member's next rollouts become ready while it trains: it may run one phase on either side, each
in meta-iterations of its own. A migrated tail holds a share of its nodes, which the next rollout may then have: a node holds one
full phase and one tail at most. A sync that needs a permit begins when all nodes of its member are free; phases on them that
became ready after it wait for it, however a policy chooses.

No clock, no durations, no jobs: a driver has these. Plain functions over `rows`; `rollmux_env.kernel.compiled.twin` compiles them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.kernel.dispatch.rows import (
    ABSENT,
    HELD,
    NOTHING,
    ROLLOUT,
    SYNC,
    TAIL,
    TRAINING,
    TRAINING_POOL,
    WAITS,
    GroupRow,
    MemberRow,
)

Members = Sequence[MemberRow]


def join(group: GroupRow, m: MemberRow) -> None:
    """A job, whose nodes and plan are written, is the last member; it takes part from the first time that it is ready."""
    m.order = group.joined
    group.joined += 1
    m.joined_s = group.now_s
    m.turn_rollout = m.turn_training = ABSENT
    m.begun = m.leaving = 0
    m.waits_rollout = m.waits_training = m.waits_sync = 0
    m.rolls = m.trains = m.syncs = m.passed = m.handing = 0
    m.served_rollout = m.served_training = 0
    m.rollouts = m.trainings = 0
    m.sum_rollout_s = m.sum_training_s = 0.0
    m.rollout_since_s = m.training_since_s = m.sync_since_s = 0.0
    m.rollout_s = m.planned_rollout_s
    m.training_s = m.planned_training_s


def enter(group: GroupRow, members: Members, m: MemberRow) -> None:
    """Give a member its first meta-iteration, on all its nodes: the one after the oldest of a training in progress. Of two
    different ones, on the two sides, it would run at a longer period for ever.

    The members in front may be in it already, never those behind: of two moves into a group the second may end its pause first.
    """
    oldest = ABSENT
    for k in range(group.n):
        oldest = min(oldest, members[k].turn_training)
    turn = 0
    if oldest < ABSENT:
        turn = oldest
        for k in range(group.n):
            o = members[k]
            if o.turn_training < ABSENT and (o.begun != 0 or o.turn_training > oldest):
                turn = oldest + 1
        for k in range(group.n):
            o = members[k]
            if o.turn_training < ABSENT and o.order > m.order:
                turn = max(turn, o.turn_training + o.begun)
    m.turn_rollout = m.turn_training = turn


def ready(group: GroupRow, members: Members, m: MemberRow, phase: int) -> None:
    """A phase or a sync of a member could run."""
    if phase == ROLLOUT:
        if m.turn_rollout == ABSENT:
            enter(group, members, m)
        m.waits_rollout, m.rollout_number, m.rollout_overtaken = WAITS, group.requests, 0
        group.waiting += 1
    elif phase == TRAINING:
        m.waits_training, m.training_number, m.training_overtaken = WAITS, group.requests, 0
        group.waiting += 1
    else:
        m.waits_sync, m.sync_number = 1, group.requests
        group.syncs += 1
    group.requests += 1


def withdraw(group: GroupRow, m: MemberRow) -> None:
    """A member waits for no permit any more, and its tail does not move; what it runs goes on."""
    group.waiting -= (m.waits_rollout != 0) + (m.waits_training != 0)
    group.syncs -= m.waits_sync
    m.waits_rollout = m.waits_training = m.waits_sync = m.passed = 0


def grant(group: GroupRow, members: Members, m: MemberRow, phase: int) -> None:
    """A phase or a sync that waits, whose nodes are free, has its permit."""
    group.permits += 1
    if phase == ROLLOUT:
        nodes, number = m.nodes, m.rollout_number
        m.waits_rollout, m.served_rollout, m.begun = NOTHING, group.permits, 1
        group.waiting -= 1
    elif phase == TRAINING:
        nodes, number = TRAINING_POOL, m.training_number
        m.waits_training, m.served_training, m.begun = NOTHING, group.permits, 1
        group.waiting -= 1
    else:
        nodes, number = m.nodes | TRAINING_POOL, m.sync_number
        m.waits_sync, m.served_rollout, m.served_training = 0, group.permits, group.permits
        group.syncs -= 1
    if group.waiting > 0:
        for k in range(group.n):
            o = members[k]
            if o.waits_rollout != 0 and o.rollout_number < number and o.nodes & nodes != 0:
                o.rollout_overtaken += 1
            if o.waits_training != 0 and o.training_number < number and TRAINING_POOL & nodes != 0:
                o.training_overtaken += 1
    begin(group, m, phase)


def begin(group: GroupRow, m: MemberRow, phase: int) -> None:
    """A member runs a phase or a sync, and has its nodes."""
    if phase == ROLLOUT:
        group.busy |= m.nodes
        m.rolls, m.rollout_since_s = ROLLOUT, group.now_s
    elif phase == TRAINING:
        group.busy |= TRAINING_POOL
        m.trains, m.training_since_s = 1, group.now_s
    else:
        group.busy |= m.nodes | TRAINING_POOL
        m.syncs, m.sync_since_s = 1, group.now_s


def threshold(m: MemberRow) -> None:
    """So many of the responses of a member's rollout are done that the rest may be migrated."""
    m.passed = 1 if m.nodes != TRAINING_POOL else 0


def migrate(group: GroupRow, m: MemberRow) -> None:
    """The tail of a rollout leaves its nodes but for a share. What comes after it on them is the next rollout's turn."""
    group.busy &= ~m.nodes
    group.tails |= m.nodes
    m.rolls, m.rollout_since_s = TAIL, group.now_s
    m.turn_rollout += 1


def finish(group: GroupRow, m: MemberRow, phase: int, seconds: float, counts: bool) -> None:
    """A phase has run and its nodes are free. Where `counts` is False it was a rollout beside the member's iterations."""
    if phase == SYNC:
        end_sync(group, m)
        return
    pinned = m.nodes != TRAINING_POOL  # else nobody comes between a rollout and its training
    if phase == TRAINING:
        group.busy &= ~TRAINING_POOL
        m.trains = 0
        m.turn_training += 1
        if not pinned:
            m.turn_rollout += 1
    else:
        if counts and pinned and m.rolls != TAIL:
            m.turn_rollout += 1
        end_rollout(group, m)
    if phase == TRAINING or not counts:
        m.begun = 1 if m.staleness > 0 and (m.turn_rollout > m.turn_training or m.rolls != NOTHING) else 0
    if not counts:
        return
    if phase == TRAINING:
        m.sum_training_s += seconds
        m.trainings += 1
        m.training_s = m.sum_training_s / m.trainings
    else:
        m.sum_rollout_s += seconds
        m.rollouts += 1
        m.rollout_s = m.sum_rollout_s / m.rollouts


def end_rollout(group: GroupRow, m: MemberRow) -> None:
    """What a member holds of rollout nodes is free, if it runs a rollout."""
    if m.rolls == TAIL:
        group.tails &= ~m.nodes
    elif m.rolls == ROLLOUT:
        group.busy &= ~m.nodes
    m.rolls, m.passed = NOTHING, 0


def end_sync(group: GroupRow, m: MemberRow) -> None:
    """All nodes of a member are free, if it runs a sync."""
    if m.syncs != 0:
        group.busy &= ~(m.nodes | TRAINING_POOL)
    m.syncs = 0


def is_between(m: MemberRow) -> bool:
    """Whether a member may be away now: it has no iteration in hand, or is stale and runs nothing but a rollout."""
    return m.trains == 0 and m.syncs == 0 and (m.staleness > 0 or (m.begun == 0 and m.rolls == NOTHING))


def leave_for_now(group: GroupRow, m: MemberRow) -> None:
    """A member is in nobody's way until it is ready for a rollout; then it comes after the others."""
    end_rollout(group, m)
    withdraw(group, m)
    m.begun = 0
    m.turn_rollout = m.turn_training = ABSENT


def go(group: GroupRow, m: MemberRow) -> None:
    """A member is no longer there. What it runs is over and its nodes are free."""
    if m.trains != 0:
        group.busy &= ~TRAINING_POOL
    end_sync(group, m)
    end_rollout(group, m)
    withdraw(group, m)


def hold_back(group: GroupRow, members: Members) -> None:
    """Hold the phases that wait for a sync which needs one of their nodes, and no others."""
    group.occupied = 0
    for k in range(group.n):
        m = members[k]
        if m.waits_rollout != 0:
            m.waits_rollout = HELD if behind_sync(group, members, m.nodes, m.rollout_number) else WAITS
            group.occupied += m.waits_rollout == HELD
        if m.waits_training != 0:
            m.waits_training = HELD if behind_sync(group, members, TRAINING_POOL, m.training_number) else WAITS
            group.occupied += m.waits_training == HELD


def behind_sync(group: GroupRow, members: Members, nodes: int, number: int) -> bool:
    """Whether a sync that became ready before something of a number needs one of its nodes."""
    for k in range(group.n):
        o = members[k]
        if o.waits_sync != 0 and o.sync_number < number and (o.nodes | TRAINING_POOL) & nodes != 0:
            return True
    return False


def next_sync(group: GroupRow, members: Members) -> int:
    """The row of the first sync whose nodes are all free; -1 of none."""
    best, first = -1, ABSENT
    for k in range(group.n):
        m = members[k]
        nodes = m.nodes | TRAINING_POOL
        if m.waits_sync != 0 and m.sync_number < first and nodes & (group.busy | group.tails) == 0:  # noqa: SIM102 (the dear one)
            if not behind_sync(group, members, nodes, m.sync_number):
                best, first = k, m.sync_number
    return best
