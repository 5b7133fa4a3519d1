"""Rules of a co-execution group: joining, readiness, permits, release of nodes, absence and leaving.

A member is a cycle: a rollout on all the rollout nodes that it is pinned to, a training on all of the group's training nodes, a
sync, and again. A permit is for all nodes of a phase at once. So no member holds one node while it waits for another, and there is
no deadlock, whatever a policy chooses. A stale member's next rollouts become ready while it trains. It may run one phase on either
side, each with separate meta-iterations. A migrated tail holds a share of its nodes, and the next rollout may use the rest: a node
holds at most one full phase and one tail. A sync that needs a permit begins when all nodes of its member are free. Phases on them
that became ready after it wait for it, whatever a policy chooses.

There is no clock, no duration and no job here: a driver has these. The functions over `rows` are plain;
`rollmux_env.kernel.compiled.twin` compiles them.
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
    """Add a job as the last member, after its nodes and plan are written; it takes part once it is ready for the first time."""
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
    m.rollout_start_s = m.training_start_s = m.sync_start_s = 0.0
    m.rollout_s = m.planned_rollout_s
    m.training_s = m.planned_training_s


def enter(group: GroupRow, members: Members, m: MemberRow) -> None:
    """Give a member its first meta-iteration, on all its nodes: the one after the oldest training in progress.

    With two different meta-iterations on the two sides its period would stay longer forever. Members before it may be in that
    meta-iteration already, later ones never: of two moves into a group the second may end its pause first.
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
    """Record that a phase or a sync of a member is ready."""
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
    """Withdraw a member's requests for permits, and keep its tail from migrating; its running phases continue."""
    group.waiting -= (m.waits_rollout != 0) + (m.waits_training != 0)
    group.syncs -= m.waits_sync
    m.waits_rollout = m.waits_training = m.waits_sync = m.passed = 0


def grant(group: GroupRow, members: Members, m: MemberRow, phase: int) -> None:
    """Give a waiting phase or sync, whose nodes are free, its permit."""
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
    """Begin a phase or a sync of a member, and occupy its nodes."""
    if phase == ROLLOUT:
        group.busy |= m.nodes
        m.rolls, m.rollout_start_s = ROLLOUT, group.now_s
    elif phase == TRAINING:
        group.busy |= TRAINING_POOL
        m.trains, m.training_start_s = 1, group.now_s
    else:
        group.busy |= m.nodes | TRAINING_POOL
        m.syncs, m.sync_start_s = 1, group.now_s


def threshold(m: MemberRow) -> None:
    """Record that so few responses of a member's rollout are left that they may be migrated."""
    m.passed = 1 if m.nodes != TRAINING_POOL else 0


def migrate(group: GroupRow, m: MemberRow) -> None:
    """Migrate the tail of a rollout to a share of its nodes; the next rollout on them may begin."""
    group.busy &= ~m.nodes
    group.tails |= m.nodes
    m.rolls, m.rollout_start_s = TAIL, group.now_s
    m.turn_rollout += 1


def finish(group: GroupRow, m: MemberRow, phase: int, seconds: float, counts: bool) -> None:
    """Record that a phase has ended, and free its nodes. If `counts` is False, it was a rollout beside the member's iterations."""
    if phase == SYNC:
        end_sync(group, m)
        return
    pinned = m.nodes != TRAINING_POOL  # else no phase runs between a rollout and its training
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
    """Free the rollout nodes that a member holds, if it runs a rollout."""
    if m.rolls == TAIL:
        group.tails &= ~m.nodes
    elif m.rolls == ROLLOUT:
        group.busy &= ~m.nodes
    m.rolls, m.passed = NOTHING, 0


def end_sync(group: GroupRow, m: MemberRow) -> None:
    """Free all nodes of a member, if it runs a sync."""
    if m.syncs != 0:
        group.busy &= ~(m.nodes | TRAINING_POOL)
    m.syncs = 0


def is_between(m: MemberRow) -> bool:
    """Return whether a member may be away now: it has no iteration in progress, or is stale and runs at most a rollout."""
    return m.trains == 0 and m.syncs == 0 and (m.staleness > 0 or (m.begun == 0 and m.rolls == NOTHING))


def suspend(group: GroupRow, m: MemberRow) -> None:
    """Suspend a member: it blocks no other until it is ready for a rollout, and comes after the others then."""
    end_rollout(group, m)
    withdraw(group, m)
    m.begun = 0
    m.turn_rollout = m.turn_training = ABSENT


def end_all(group: GroupRow, m: MemberRow) -> None:
    """End everything that a member runs, free its nodes, and withdraw its requests."""
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
    """Return whether a sync that became ready before request `number` needs one of these nodes."""
    for k in range(group.n):
        o = members[k]
        if o.waits_sync != 0 and o.sync_number < number and (o.nodes | TRAINING_POOL) & nodes != 0:
            return True
    return False


def next_sync(group: GroupRow, members: Members) -> int:
    """Return the row of the first sync whose nodes are all free, or -1."""
    best, first = -1, ABSENT
    for k in range(group.n):
        m = members[k]
        nodes = m.nodes | TRAINING_POOL
        if m.waits_sync != 0 and m.sync_number < first and nodes & (group.busy | group.tails) == 0:  # noqa: SIM102 (behind_sync is expensive)
            if not behind_sync(group, members, nodes, m.sync_number):
                best, first = k, m.sync_number
    return best
