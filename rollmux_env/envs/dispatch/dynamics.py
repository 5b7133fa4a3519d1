"""The event replay of one group as compiled functions on arrays.

It is equivalent to `rollmux_env.replay.event` for members that all join at time 0 and stay. Simultaneous events have the same
order, and the same choices start the same phases at the same times. In every function `e` is the row of the group, and `k` the
number of a member in it; `rollmux_env.envs.dispatch.types` describes the tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.dispatch.actions import choice_of, round_robin, write_mask
from rollmux_env.envs.dispatch.observation import write_observation
from rollmux_env.envs.dispatch.types import THRESHOLD, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import pace, rules
from rollmux_env.kernel.dispatch.rows import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Ints

INSTANT_S = 1e-6  # times this close are simultaneous, as in every replay
_ROLLOUT, _TRAINING, _SYNC = range(3)  # positions in the columns of `PROGRESS`

_join, _mark_ready, _grant, _finish_phase = twin(rules.join), twin(rules.ready), twin(rules.grant), twin(rules.finish)
_migrate, _mark_threshold = twin(rules.migrate), twin(rules.threshold)
_begin_rollout, _advance_rollout, _pass_threshold = twin(pace.begin_rollout), twin(pace.advance), twin(pace.pass_threshold)
_ends_s, _tail_s = twin(pace.ends_s), twin(pace.tail_s)


@compiled(arrays=False)
def begin(groups: Groups, e: int) -> None:
    """Reset a group to time 0, with all members ready for their first rollout."""
    group, clock = groups.groups[e], groups.clocks[e]
    group.joined = group.requests = group.permits = group.waiting = 0
    group.busy = group.tails = 0
    group.now_s = 0.0
    clock.over = clock.stamps = clock.spans = clock.invalid = clock.decisions = clock.migrations = 0
    clock.decided_s = clock.work_s = clock.behind_s = clock.all_work_s = 0.0
    groups.last[e, :] = -1
    for k in range(len(groups.members[e])):
        _join(group, groups.members[e, k])
    for k in range(group.n):
        r = groups.progress[e, k]
        r.ends_s[:] = np.inf
        r.is_cold[:] = 1
        r.iteration = r.sampled = r.trained = 0
        r.sampled_s = r.trained_s = r.solo_s = r.ended_s = r.behind_s = 0.0
        _report_ready(groups, e, k)


@compiled(arrays=False)
def _report_ready(groups: Groups, e: int, k: int) -> bool:
    """Report the phases that a member could begin now, and return whether there are any.

    They are the training of sampled responses, and a rollout whose weights are fresh enough.
    """
    group, members, m, r = groups.groups[e], groups.members[e], groups.members[e, k], groups.progress[e, k]
    before = group.requests
    if m.waits_training == 0 and m.trains == 0 and r.trained < r.sampled:
        _mark_ready(group, members, m, TRAINING)
    if m.waits_rollout == 0 and m.rolls == NOTHING and r.sampled <= r.iteration + m.staleness:
        _mark_ready(group, members, m, ROLLOUT)
    return bool(group.requests > before)


@compiled(arrays=False)
def _schedule(groups: Groups, e: int, k: int, what: int, at_s: float) -> None:
    """Schedule the next event of a member's rollout, training or sync."""
    clock, r = groups.clocks[e], groups.progress[e, k]
    clock.stamps += 1
    r.stamps[what] = clock.stamps
    r.ends_s[what] = at_s


@compiled(arrays=False)
def _next_event(groups: Groups, e: int) -> Any:
    """Return the next event: the member, its rollout, training or sync, and the time, which is infinite without any event."""
    first, what, first_s, stamp = 0, _ROLLOUT, np.inf, 0
    for k in range(groups.groups[e].n):
        r = groups.progress[e, k]
        for j in range(3):
            if r.ends_s[j] < first_s or (r.ends_s[j] == first_s and r.stamps[j] < stamp):
                first, what, first_s, stamp = k, j, r.ends_s[j], r.stamps[j]
    return first, what, first_s


@compiled(arrays=False)
def _run_to_report(groups: Groups, e: int, tails: TailParameters) -> None:
    """Advance to the next instant with an event that is reported to a dispatcher, or to the end of the episode."""
    group, clock, news = groups.groups[e], groups.clocks[e], False
    while not news:
        k, what, at_s = _next_event(groups, e)
        if at_s > clock.horizon_s:
            group.now_s = clock.horizon_s
            clock.over = 1
            return
        now_s = max(at_s, group.now_s)
        until_s = now_s + INSTANT_S
        while at_s <= until_s:
            now_s = max(now_s, at_s)
            news = _handle_event(groups, e, k, what, at_s, tails) or news
            k, what, at_s = _next_event(groups, e)
        group.now_s = now_s


@compiled(arrays=False)
def _handle_event(groups: Groups, e: int, k: int, what: int, now_s: float, tails: TailParameters) -> bool:
    """Handle an event of a member. Return whether it is reported to a dispatcher."""
    m, r = groups.members[e, k], groups.progress[e, k]
    r.ends_s[what] = np.inf
    if what == _SYNC:
        return _end_iteration(groups, e, k, now_s)
    if what == _TRAINING:
        _finish_training(groups, e, k, now_s)
        r.trained += 1
        if m.sync_s > 0:
            _begin_sync(groups, e, k, now_s)
            _report_ready(groups, e, k)
        else:
            _end_iteration(groups, e, k, now_s)
    elif r.next == THRESHOLD:
        _mark_threshold(m)
        _pass_threshold(r, now_s)
        _continue_rollout(groups, e, k, tails)
    else:
        _finish_rollout(groups, e, k, now_s, tails)
        r.sampled += 1
        _report_ready(groups, e, k)
    return True


@compiled(arrays=False)
def _begin_sync(groups: Groups, e: int, k: int, now_s: float) -> None:
    """Begin a sync. If several syncs of a member are in progress, the oldest one ends next."""
    clock, r, syncs = groups.clocks[e], groups.progress[e, k], groups.syncs[e, k]
    clock.stamps += 1
    sync = syncs[(r.trained - 1) % len(syncs)]
    sync[0] = now_s + groups.members[e, k].sync_s
    sync[1] = clock.stamps
    _schedule_oldest_sync(groups, e, k)


@compiled(arrays=False)
def _schedule_oldest_sync(groups: Groups, e: int, k: int) -> None:
    r, syncs = groups.progress[e, k], groups.syncs[e, k]
    if r.iteration < r.trained:
        sync = syncs[r.iteration % len(syncs)]
        r.ends_s[_SYNC] = sync[0]
        r.stamps[_SYNC] = int(sync[1])


@compiled(arrays=False)
def _end_iteration(groups: Groups, e: int, k: int, now_s: float) -> bool:
    """End an iteration with its sync. Return whether the member could begin a phase now."""
    m, r, syncs = groups.members[e, k], groups.progress[e, k], groups.syncs[e, k]
    durations, number, most = groups.durations[e, k], r.iteration, len(syncs)
    rollout_s = (r.cold_s[_ROLLOUT] if number == 0 else 0.0) + r.base_s[_ROLLOUT] * durations[0, number]
    training_s = (r.cold_s[_TRAINING] if number == 0 else 0.0) + r.base_s[_TRAINING] * durations[1, number]
    fresh_s = syncs[(number - 1 - m.staleness) % most, 2] if number > m.staleness else 0.0
    r.sampled_s = max(r.sampled_s, fresh_s) + rollout_s
    r.trained_s = max(r.trained_s, r.sampled_s) + training_s
    r.solo_s = r.trained_s + m.sync_s
    syncs[number % most, 2] = r.solo_s
    r.iteration += 1
    r.ended_s = now_s
    behind_s = max(0.0, now_s - m.slo * r.solo_s)
    groups.clocks[e].behind_s += behind_s - r.behind_s
    r.behind_s = behind_s
    if m.sync_s > 0:
        _schedule_oldest_sync(groups, e, k)
    return _report_ready(groups, e, k)


@compiled(arrays=False)
def _start_phase(groups: Groups, e: int, k: int, phase: int, tails: TailParameters) -> None:
    """Grant a phase that a member waits for."""
    group, m, r, what = groups.groups[e], groups.members[e, k], groups.progress[e, k], phase - ROLLOUT
    _grant(group, groups.members[e], m, phase)
    switch_s, number = _switch_s(groups, e, k, phase), r.trained if phase == TRAINING else r.sampled
    seconds = r.base_s[what] * groups.durations[e, k, what, number]
    r.start_s[what] = group.now_s
    r.switch_s[what] = switch_s
    if phase == TRAINING:
        _schedule(groups, e, k, _TRAINING, group.now_s + (switch_s + seconds))
        return
    r.began_s = group.now_s
    _begin_rollout(r, group.now_s + switch_s, seconds, groups.durations[e, k, 2, number])
    _continue_rollout(groups, e, k, tails)


@compiled(arrays=False)
def _continue_rollout(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """Continue a rollout at the speed that tails on its nodes leave, to its threshold or its end."""
    m, r = groups.members[e, k], groups.progress[e, k]
    rate = tails.rate if m.nodes & groups.groups[e].tails != 0 else 1.0
    r.next = ROLLOUT if m.passed == 1 else THRESHOLD
    _schedule(groups, e, k, _ROLLOUT, _ends_s(r, m.passed == 1, rate))


@compiled(arrays=False)
def _migrate_tail(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """Migrate the tail of a member's rollout to a share of its nodes."""
    group, r = groups.groups[e], groups.progress[e, k]
    at_s = _tail_s(r, group.now_s, tails.move_s, groups.durations[e, k, 3, r.sampled])
    _end_span(groups, e, k, group.tails, group.now_s, tails.share)
    _migrate(group, groups.members[e, k])
    groups.clocks[e].migrations += 1
    r.next = ROLLOUT
    _schedule(groups, e, k, _ROLLOUT, at_s)


@compiled(arrays=False)
def _finish_training(groups: Groups, e: int, k: int, now_s: float) -> None:
    """End the training of a member. For a stale member, all work of the iteration counts at this point."""
    clock, m = groups.clocks[e], groups.members[e, k]
    _record_span(groups, e, k, TRAINING, 1.0, TRAINING_POOL, now_s)
    _finish_phase(groups.groups[e], m, TRAINING, now_s - m.training_start_s, True)
    if m.staleness > 0:
        clock.work_s += own_period(m.planned_rollout_s, m.planned_training_s, m.sync_s, m.staleness)
    else:
        clock.work_s += m.planned_training_s + m.sync_s


@compiled(arrays=False)
def _finish_rollout(groups: Groups, e: int, k: int, now_s: float, tails: TailParameters) -> None:
    """End a rollout and free its nodes. If it was a tail, rollouts that shared nodes with it speed up."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.progress[e, k]
    was_tail, before = m.rolls == TAIL, group.tails
    _end_span(groups, e, k, before, now_s, tails.share)
    _finish_phase(group, m, ROLLOUT, now_s - r.began_s, True)
    if m.staleness == 0:
        clock.work_s += m.planned_rollout_s
    if was_tail:
        for j in range(group.n):
            o = groups.members[e, j]
            if o.rolls == ROLLOUT and o.nodes & m.nodes != 0:
                _advance_rollout(groups.progress[e, j], now_s)
                _end_span(groups, e, j, before, now_s, tails.share)
                _continue_rollout(groups, e, j, tails)


@compiled(arrays=False)
def _switch_s(groups: Groups, e: int, k: int, phase: int) -> float:
    """Return the seconds of the switch at the start of a phase, and record that its nodes now run its job."""
    nodes, r, what = TRAINING_POOL if phase == TRAINING else groups.members[e, k].nodes, groups.progress[e, k], phase - ROLLOUT
    switched = False
    for node in range(len(groups.last[e])):
        if nodes & (1 << node) != 0:
            last = groups.last[e, node]
            switched = switched or (last != k and last != -1)
            groups.last[e, node] = k
    cold = r.is_cold[what] == 1
    r.is_cold[what] = 0
    return r.cold_s[what] if cold else (r.warm_s[what] if switched else 0.0)


@compiled(arrays=False)
def _end_span(groups: Groups, e: int, k: int, tails: int, now_s: float, share: float) -> None:
    """End the current span of a member's rollout, because its shares of nodes change or it is over.

    `tails` are the nodes that had tails until now.
    """
    m, r = groups.members[e, k], groups.progress[e, k]
    if m.rolls == TAIL:
        _record_span(groups, e, k, TAIL, share, m.nodes, now_s)
    else:
        _record_span(groups, e, k, ROLLOUT, 1.0, m.nodes & ~tails, now_s)
        _record_span(groups, e, k, ROLLOUT, 1 - share, m.nodes & tails, now_s)
    r.switch_s[_ROLLOUT] -= min(r.switch_s[_ROLLOUT], now_s - r.start_s[_ROLLOUT])
    r.start_s[_ROLLOUT] = now_s


@compiled(arrays=False)
def _record_span(groups: Groups, e: int, k: int, what: int, share: float, nodes: int, now_s: float) -> None:
    """Record a span of a phase until now."""
    if nodes == 0:
        return
    clock, r, side = groups.clocks[e], groups.progress[e, k], _TRAINING if what == TRAINING else _ROLLOUT
    span = groups.history[e, clock.spans % len(groups.history[e])]
    clock.spans += 1
    span.member = k
    span.what = what
    span.nodes = nodes
    span.share = share
    span.iteration = r.trained if what == TRAINING else r.sampled
    span.start_s = r.start_s[side]
    span.end_s = now_s
    span.switch_s = min(r.switch_s[side], now_s - span.start_s)


@compiled(arrays=False)
def carry_out(groups: Groups, e: int, row: int, tails: TailParameters) -> None:
    """Carry out the choice of a row of the action mask: wait until a phase ends, start a phase, or migrate a tail."""
    k, phase = choice_of(groups.members[e], row)
    if phase == NOTHING:
        _run_to_report(groups, e, tails)
    elif phase == TAIL:
        _migrate_tail(groups, e, k, tails)
    else:
        _start_phase(groups, e, k, phase, tails)


@compiled(arrays=False)
def ask(groups: Groups, e: int, out: Observations, tails: TailParameters) -> None:
    """Run a group to its next decision with more than one choice, and write the observation of that decision."""
    group, clock, members, mask = groups.groups[e], groups.clocks[e], groups.members[e], out.mask[e]
    while clock.over == 0:
        count = write_mask(group, members, mask)
        if count + mask[0] > 1:
            break
        carry_out(groups, e, int(mask.argmax()), tails)
    write_observation(group, members, out.job[e], out.candidates[e], out.cluster[e], mask)
    if clock.over == 1:
        mask[:] = 0
        mask[0] = 1


@compiled(arrays=False)
def step_all(groups: Groups, actions: Ints, out: Observations, tails: TailParameters) -> None:
    """Carry out a decision in every group that is not over, and run each one to its next decision.

    A masked or unknown row counts as invalid, and round robin chooses instead.
    """
    for e in range(len(groups.groups)):
        group, clock = groups.groups[e], groups.clocks[e]
        clock.decided_s = group.now_s
        clock.work_s = 0.0
        clock.behind_s = 0.0
        clock.invalid = 0
        if clock.over == 1:
            continue
        row, mask = actions[e], out.mask[e]
        if row < 0 or row >= len(mask) or mask[row] == 0:
            clock.invalid = 1
            row = round_robin(group, groups.members[e], True)
            if mask[row] == 0:
                row = int(mask.argmax())
        clock.decisions += 1
        carry_out(groups, e, row, tails)
        ask(groups, e, out, tails)
        clock.all_work_s += clock.work_s


@compiled(arrays=False)
def follow_round_robin(groups: Groups, e: int, migrates: bool, tails: TailParameters) -> None:
    """Play a group to its end in strict round robin, as the reference of rewards."""
    group, clock = groups.groups[e], groups.clocks[e]
    while clock.over == 0:
        carry_out(groups, e, round_robin(group, groups.members[e], migrates), tails)
    clock.all_work_s = clock.work_s
