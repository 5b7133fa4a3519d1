"""What happens in a group at each instant, compiled: the event replay of one group as arrays.

The same as `rollmux_env.replay.event` with a `Dispatcher`, for members that all join at time 0 and stay: what comes together comes
in the same order, and the same choices start the same phases at the same times.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.dispatch.actions import nodes_of
from rollmux_env.envs.dispatch.types import NOTHING, ROLLOUT, SYNC, TAIL, TRAINING, TRAINING_POOL, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Records

INSTANT_S = 1e-6  # times this close are one instant, as in every replay
_THRESHOLD = 5  # what comes next for a rollout that is not past it


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
        m, r = groups.members[e, k], groups.progress[e, k]
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
    clock, r = groups.clocks[e], groups.progress[e, k]
    clock.stamps += 1
    r.stamp = clock.stamps
    r.until_s = at_s
    r.next = what


@compiled(arrays=False)
def _span(groups: Groups, e: int, k: int, what: int, share: float, nodes: int, now_s: float) -> None:
    """Keep what a phase held until now."""
    if nodes == 0:
        return
    clock, r = groups.clocks[e], groups.progress[e, k]
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
    m, r = groups.members[e, k], groups.progress[e, k]
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
def _go_on(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """A rollout goes on with what tails leave of its nodes, to its threshold or to its end."""
    m, r = groups.members[e, k], groups.progress[e, k]
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
    nodes, r = nodes_of(groups.members[e, k], phase), groups.progress[e, k]
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
def _start(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """The phase that a member waits for has its permit."""
    group, m, r = groups.groups[e], groups.members[e, k], groups.progress[e, k]
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
    durations = groups.durations[e, k]
    if phase == TRAINING:
        _wake(groups, e, k, now_s + (switch_s + r.base_training_s * durations[1, r.iteration]), TRAINING)
    else:
        r.went_s = now_s + switch_s
        r.left_s = r.base_rollout_s * durations[0, r.iteration]
        r.tail_s = r.left_s * (1 - durations[2, r.iteration])
        _go_on(groups, e, k, tails)


@compiled(arrays=False)
def _migrate(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """The tail of a member's rollout leaves its nodes but for a share."""
    group, m, r = groups.groups[e], groups.members[e, k], groups.progress[e, k]
    now_s = group.now_s
    _advance(r, now_s)
    _close(groups, e, k, group.tails, now_s, tails.share)
    group.busy &= ~m.nodes
    group.tails |= m.nodes
    m.runs = TAIL
    m.since_s = now_s
    m.turn_rollout += 1
    groups.clocks[e].migrations += 1
    _wake(groups, e, k, now_s + tails.move_s + max(0.0, r.left_s) * groups.durations[e, k, 3, r.iteration], ROLLOUT)


@compiled(arrays=False)
def _finish(groups: Groups, e: int, k: int, phase: int, now_s: float, tails: TailParameters) -> None:
    """A phase is over and its nodes are free."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.progress[e, k]
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
                _advance(groups.progress[e, j], now_s)
                _close(groups, e, j, before, now_s, tails.share)
                _go_on(groups, e, j, tails)


@compiled(arrays=False)
def _end(groups: Groups, e: int, k: int, now_s: float, tails: TailParameters) -> None:
    """What a member waited for is over."""
    m, r = groups.members[e, k], groups.progress[e, k]
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
    durations = groups.durations[e, k]
    first = r.iteration == 0
    r.solo_s += (r.rollout_cold_s if first else 0.0) + r.base_rollout_s * durations[0, r.iteration]
    r.solo_s += (r.training_cold_s if first else 0.0) + r.base_training_s * durations[1, r.iteration]
    r.solo_s += m.sync_s
    r.iteration += 1
    r.ended_s = now_s
    behind_s = max(0.0, now_s - m.slo * r.solo_s)
    groups.clocks[e].behind_s += behind_s - r.behind_s
    r.behind_s = behind_s
    _ready(groups, e, k, ROLLOUT)


@compiled(arrays=False)
def _pass_instant(groups: Groups, e: int, tails: TailParameters) -> None:
    """Go to the next time at which something ends, and end it; or to the end of the episode."""
    group, clock = groups.groups[e], groups.clocks[e]
    first_s = np.inf
    for k in range(group.n):
        first_s = min(first_s, groups.progress[e, k].until_s)
    if first_s > clock.horizon_s:
        group.now_s = clock.horizon_s
        clock.over = 1
        return
    now_s = max(first_s, group.now_s)
    until_s = now_s + INSTANT_S
    while True:
        best = -1
        for k in range(group.n):
            r = groups.progress[e, k]
            if r.until_s <= until_s:
                b = groups.progress[e, max(best, 0)]
                if best < 0 or r.until_s < b.until_s or (r.until_s == b.until_s and r.stamp < b.stamp):
                    best = k
        if best < 0:
            break
        end_s = groups.progress[e, best].until_s
        now_s = max(now_s, end_s)
        _end(groups, e, best, end_s, tails)
    group.now_s = now_s


@compiled(arrays=False)
def carry_out(groups: Groups, e: int, row: int, tails: TailParameters) -> None:
    """Do what a row says: wait until something ends, start a phase, or migrate a tail."""
    if row == 0:
        _pass_instant(groups, e, tails)
    elif groups.members[e, row - 1].waits != NOTHING:
        _start(groups, e, row - 1, tails)
    else:
        _migrate(groups, e, row - 1, tails)
