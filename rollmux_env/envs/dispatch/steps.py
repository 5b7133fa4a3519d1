"""The event replay of one group as arrays: from one decision to the next.

The same as `rollmux_env.replay.event` with a `Dispatcher`, for members that all join at time 0 and stay: what comes together comes
in the same order, and the same choices start the same phases at the same times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.looks import Looks, nodes_of, round_robin, write_look, write_mask
from rollmux_env.envs.dispatch.tables import (
    NOTHING,
    ROLLOUT,
    SYNC,
    TAIL,
    TRAINING,
    TRAINING_POOL,
    Groups,
    Records,
)
from rollmux_env.kernel.compiled import compiled

INSTANT_S = 1e-6  # times this close are one instant, as in every replay
_THRESHOLD = 5  # what comes next for a rollout that is not past it


class Tails(NamedTuple):
    """What of a `TailModel` the simulation needs: the share that a tail keeps, the speed beside one, seconds of its move."""

    share: float
    rate: float
    move_s: float


@compiled(arrays=False)
def begin(groups: Groups, e: int) -> None:
    """All members are ready for their first rollout, at time 0."""
    group, clock = groups.groups[e], groups.clocks[e]
    group.busy = 0
    group.tails = 0
    group.now_s = 0.0
    clock.over = 0
    clock.stamps = 0
    clock.requests = 0
    clock.spans = 0
    clock.invalid = 0
    clock.decisions = 0
    clock.migrations = 0
    clock.since_s = 0.0
    clock.work_s = 0.0
    clock.behind_s = 0.0
    clock.all_work_s = 0.0
    groups.last[e, :] = -1
    for k in range(len(groups.members[e])):
        groups.members[e, k].waits = NOTHING
        groups.members[e, k].runs = NOTHING
    for k in range(group.n):
        m, r = groups.members[e, k], groups.runners[e, k]
        m.turn_rollout = 0
        m.turn_training = 0
        m.runs = NOTHING
        m.passed = 0
        m.since_s = 0.0
        m.joined_s = 0.0
        m.own_s = 0.0
        m.rollout_s = m.planned_rollout_s
        m.training_s = m.planned_training_s
        r.until_s = np.inf
        r.rollout_is_cold = 1
        r.training_is_cold = 1
        r.iteration = 0
        r.rollouts_done = 0
        r.trainings_done = 0
        r.sum_rollout_s = 0.0
        r.sum_training_s = 0.0
        r.solo_s = 0.0
        r.ended_s = 0.0
        r.behind_s = 0.0
        _ready(groups, e, k, ROLLOUT)


@compiled(arrays=False)
def _ready(groups: Groups, e: int, k: int, phase: int) -> None:
    m, clock = groups.members[e, k], groups.clocks[e]
    m.waits = phase
    m.number = clock.requests
    m.overtaken = 0
    clock.requests += 1


@compiled(arrays=False)
def _wake(groups: Groups, e: int, k: int, at_s: float, what: int) -> None:
    clock, r = groups.clocks[e], groups.runners[e, k]
    clock.stamps += 1
    r.stamp = clock.stamps
    r.until_s = at_s
    r.next = what


@compiled(arrays=False)
def _span(groups: Groups, e: int, k: int, what: int, share: float, nodes: int, now_s: float) -> None:
    """Keep what a phase held until now."""
    if nodes == 0:
        return
    clock, r = groups.clocks[e], groups.runners[e, k]
    span = groups.history[e, clock.spans % groups.history.shape[1]]
    clock.spans += 1
    span.member = k
    span.what = what
    span.iteration = r.iteration
    span.nodes = nodes
    span.start_s = r.start_s
    span.end_s = now_s
    span.switch_s = min(r.switch_s, now_s - r.start_s)
    span.share = share


@compiled(arrays=False)
def _close(groups: Groups, e: int, k: int, tails: int, now_s: float, share: float) -> None:
    """The shares of the nodes that a member's phase holds change now, or it is over; `tails` have been there until now."""
    m, r = groups.members[e, k], groups.runners[e, k]
    if m.runs == TRAINING:
        _span(groups, e, k, TRAINING, 1.0, TRAINING_POOL, now_s)
    elif m.runs == TAIL:
        _span(groups, e, k, TAIL, share, m.nodes, now_s)
    else:
        _span(groups, e, k, ROLLOUT, 1.0, m.nodes & ~tails, now_s)
        _span(groups, e, k, ROLLOUT, 1 - share, m.nodes & tails, now_s)
    r.switch_s -= min(r.switch_s, now_s - r.start_s)
    r.start_s = now_s


@compiled(arrays=False)
def _go_on(groups: Groups, e: int, k: int, tails: Tails) -> None:
    """A rollout goes on with what tails leave of its nodes, to its threshold or to its end."""
    m, r = groups.members[e, k], groups.runners[e, k]
    r.rate = tails.rate if m.nodes & groups.groups[e].tails != 0 else 1.0
    part_s = max(0.0, r.left_s - (0.0 if m.passed == 1 else r.tail_s))
    _wake(groups, e, k, r.went_s + part_s / r.rate, ROLLOUT if m.passed == 1 else _THRESHOLD)


@compiled(arrays=False)
def _advance(r: Records, now_s: float) -> None:
    r.left_s -= max(0.0, now_s - r.went_s) * r.rate
    r.went_s = max(r.went_s, now_s)


@compiled(arrays=False)
def _switch_s(groups: Groups, e: int, k: int, phase: int) -> float:
    """Seconds of the switch that a phase begins with; its nodes now run its job."""
    nodes, r = nodes_of(groups.members[e, k], phase), groups.runners[e, k]
    switched = False
    for node in range(groups.last.shape[1]):
        if nodes & (1 << node) != 0:
            last = groups.last[e, node]
            switched = switched or (last != k and last != -1)
            groups.last[e, node] = k
    if phase == ROLLOUT:
        cold = r.rollout_is_cold == 1
        r.rollout_is_cold = 0
        return r.rollout_cold_s if cold else (r.rollout_warm_s if switched else 0.0)
    cold = r.training_is_cold == 1
    r.training_is_cold = 0
    return r.training_cold_s if cold else (r.training_warm_s if switched else 0.0)


@compiled(arrays=False)
def _start(groups: Groups, e: int, k: int, tails: Tails) -> None:
    """The phase that a member waits for has its permit."""
    group, m, r = groups.groups[e], groups.members[e, k], groups.runners[e, k]
    phase, now_s = m.waits, group.now_s
    nodes = nodes_of(m, phase)
    m.waits = NOTHING
    for j in range(group.n):
        o = groups.members[e, j]
        if o.waits != NOTHING and o.number < m.number and nodes_of(o, o.waits) & nodes != 0:
            o.overtaken += 1
    group.busy |= nodes
    m.runs = phase
    m.passed = 0
    m.since_s = now_s
    switch_s = _switch_s(groups, e, k, phase)
    r.began_s = now_s
    r.start_s = now_s
    r.switch_s = switch_s
    luck = groups.luck[e, k]
    if phase == TRAINING:
        _wake(groups, e, k, now_s + (switch_s + r.base_training_s * luck[1, r.iteration]), TRAINING)
    else:
        r.went_s = now_s + switch_s
        r.left_s = r.base_rollout_s * luck[0, r.iteration]
        r.tail_s = r.left_s * (1 - luck[2, r.iteration])
        _go_on(groups, e, k, tails)


@compiled(arrays=False)
def _migrate(groups: Groups, e: int, k: int, tails: Tails) -> None:
    """The tail of a member's rollout leaves its nodes but for a share."""
    group, m, r = groups.groups[e], groups.members[e, k], groups.runners[e, k]
    now_s = group.now_s
    _advance(r, now_s)
    _close(groups, e, k, group.tails, now_s, tails.share)
    group.busy &= ~m.nodes
    group.tails |= m.nodes
    m.runs = TAIL
    m.since_s = now_s
    m.turn_rollout += 1
    groups.clocks[e].migrations += 1
    _wake(groups, e, k, now_s + tails.move_s + max(0.0, r.left_s) * groups.luck[e, k, 3, r.iteration], ROLLOUT)


@compiled(arrays=False)
def _finish(groups: Groups, e: int, k: int, phase: int, now_s: float, tails: Tails) -> None:
    """A phase is over and its nodes are free."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.runners[e, k]
    tail = m.runs == TAIL
    seconds = now_s - r.began_s
    _close(groups, e, k, group.tails, now_s, tails.share)
    before = group.tails
    if tail:
        group.tails &= ~m.nodes
    else:
        group.busy &= ~nodes_of(m, phase)
        if phase == ROLLOUT:
            m.turn_rollout += 1
        else:
            m.turn_training += 1
    m.runs = NOTHING
    m.passed = 0
    if phase == ROLLOUT:
        r.sum_rollout_s += seconds
        r.rollouts_done += 1
        m.rollout_s = r.sum_rollout_s / r.rollouts_done
    else:
        r.sum_training_s += seconds
        r.trainings_done += 1
        m.training_s = r.sum_training_s / r.trainings_done
    m.own_s = r.sum_rollout_s + r.sum_training_s
    clock.work_s += m.planned_rollout_s if phase == ROLLOUT else m.planned_training_s + m.sync_s
    if tail:
        for j in range(group.n):
            if groups.members[e, j].runs == ROLLOUT and groups.members[e, j].nodes & m.nodes != 0:
                _advance(groups.runners[e, j], now_s)
                _close(groups, e, j, before, now_s, tails.share)
                _go_on(groups, e, j, tails)


@compiled(arrays=False)
def _end(groups: Groups, e: int, k: int, now_s: float, tails: Tails) -> None:
    """What a member waited for is over."""
    m, r = groups.members[e, k], groups.runners[e, k]
    what = r.next
    r.until_s = np.inf
    if what == _THRESHOLD:
        r.left_s = r.tail_s
        r.went_s = now_s
        m.passed = 1
        _go_on(groups, e, k, tails)
        return
    if what == ROLLOUT:
        _finish(groups, e, k, ROLLOUT, now_s, tails)
        _ready(groups, e, k, TRAINING)
        return
    if what == TRAINING:
        _finish(groups, e, k, TRAINING, now_s, tails)
        if m.sync_s > 0:
            _wake(groups, e, k, now_s + m.sync_s, SYNC)
            return
    luck = groups.luck[e, k]
    first = r.iteration == 0
    r.solo_s += (r.rollout_cold_s if first else 0.0) + r.base_rollout_s * luck[0, r.iteration]
    r.solo_s += (r.training_cold_s if first else 0.0) + r.base_training_s * luck[1, r.iteration]
    r.solo_s += m.sync_s
    r.iteration += 1
    r.ended_s = now_s
    behind_s = max(0.0, now_s - m.slo * r.solo_s)
    groups.clocks[e].behind_s += behind_s - r.behind_s
    r.behind_s = behind_s
    _ready(groups, e, k, ROLLOUT)


@compiled(arrays=False)
def _pass_instant(groups: Groups, e: int, tails: Tails) -> None:
    """Go to the next time at which something ends, and end it; or to the end of the episode."""
    group, clock = groups.groups[e], groups.clocks[e]
    first_s = np.inf
    for k in range(group.n):
        first_s = min(first_s, groups.runners[e, k].until_s)
    if first_s > clock.horizon_s:
        group.now_s = clock.horizon_s
        clock.over = 1
        return
    now_s = max(first_s, group.now_s)
    until_s = now_s + INSTANT_S
    while True:
        best = -1
        for k in range(group.n):
            r = groups.runners[e, k]
            if r.until_s <= until_s:
                b = groups.runners[e, max(best, 0)]
                if best < 0 or r.until_s < b.until_s or (r.until_s == b.until_s and r.stamp < b.stamp):
                    best = k
        if best < 0:
            break
        end_s = groups.runners[e, best].until_s
        now_s = max(now_s, end_s)
        _end(groups, e, best, end_s, tails)
    group.now_s = now_s


@compiled(arrays=False)
def _carry_out(groups: Groups, e: int, row: int, tails: Tails) -> None:
    if row == 0:
        _pass_instant(groups, e, tails)
    elif groups.members[e, row - 1].waits != NOTHING:
        _start(groups, e, row - 1, tails)
    else:
        _migrate(groups, e, row - 1, tails)


@compiled(arrays=False)
def ask(groups: Groups, e: int, looks: Looks, tails: Tails) -> None:
    """Let a group run to its next decision that has more than one answer, and write what is seen then."""
    group, clock, members, mask = groups.groups[e], groups.clocks[e], groups.members[e], looks.mask[e]
    while clock.over == 0:
        count = write_mask(group, members, mask)
        if count + mask[0] > 1:
            break
        _carry_out(groups, e, _first(mask) if count > 0 else 0, tails)
    write_look(group, members, looks.job[e], looks.candidates[e], looks.cluster[e], mask)
    if clock.over == 1:
        mask[:] = 0
        mask[0] = 1


@compiled(arrays=False)
def _first(mask: NDArray[np.int8]) -> int:
    for row in range(len(mask)):
        if mask[row] == 1:
            return row
    return 0


@compiled(arrays=False)
def ask_first(groups: Groups, e: int, looks: Looks, tails: Tails) -> None:
    """Begin an episode and go to its first decision."""
    begin(groups, e)
    ask(groups, e, looks, tails)
    groups.clocks[e].all_work_s = groups.clocks[e].work_s


@compiled(arrays=False)
def step_all(groups: Groups, actions: NDArray[np.int64], looks: Looks, tails: Tails) -> None:
    """Carry out a decision in every group that is not over, and bring it to its next one."""
    for e in range(len(groups.groups)):
        group, clock = groups.groups[e], groups.clocks[e]
        clock.since_s = group.now_s
        clock.work_s = 0.0
        clock.behind_s = 0.0
        clock.invalid = 0
        if clock.over == 1:
            continue
        row, mask = actions[e], looks.mask[e]
        if row < 0 or row >= len(mask) or mask[row] == 0:
            clock.invalid = 1
            row = round_robin(group, groups.members[e], True)
            if mask[row] == 0:
                row = _first(mask)
        clock.decisions += 1
        _carry_out(groups, e, row, tails)
        ask(groups, e, looks, tails)
        clock.all_work_s += clock.work_s


@compiled(arrays=False)
def follow_round_robin(groups: Groups, e: int, migrates: bool, tails: Tails) -> None:
    """Play a group to its end in strict round robin."""
    group, clock = groups.groups[e], groups.clocks[e]
    while clock.over == 0:
        _carry_out(groups, e, round_robin(group, groups.members[e], migrates), tails)
    clock.all_work_s = clock.work_s
