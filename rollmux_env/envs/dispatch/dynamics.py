"""What happens in a group at each instant, compiled: the event replay of one group as arrays.

The same as `rollmux_env.replay.event`, for members that all join at time 0 and stay: what comes together comes in the same order,
and the same choices start the same phases at the same times.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.dispatch.actions import choice_of
from rollmux_env.envs.dispatch.phases import finish_rollout, finish_training, migrate, pass_threshold, start
from rollmux_env.envs.dispatch.types import THRESHOLD, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import rules
from rollmux_env.kernel.dispatch.rows import NOTHING, ROLLOUT, SYNC, TAIL, TRAINING

INSTANT_S = 1e-6  # times this close are one instant, as in every replay

_join, _ready = twin(rules.join), twin(rules.ready)


@compiled(arrays=False)
def begin(groups: Groups, e: int) -> None:
    """All members are ready for their first rollout, at time 0."""
    group, clock = groups.groups[e], groups.clocks[e]
    group.joined = group.requests = group.permits = group.waiting = 0
    group.busy = group.tails = 0
    group.now_s = 0.0
    clock.over = clock.stamps = clock.spans = clock.invalid = clock.decisions = clock.migrations = 0
    clock.since_s = clock.work_s = clock.behind_s = clock.all_work_s = 0.0
    groups.last[e, :] = -1
    for k in range(len(groups.members[e])):
        _join(group, groups.members[e, k])
    for k in range(group.n):
        r = groups.progress[e, k]
        r.until_s = r.training_until_s = np.inf
        r.rollout_is_cold = r.training_is_cold = 1
        r.iteration = r.sampled = r.trained = 0
        r.sampled_s = r.trained_s = r.solo_s = r.ended_s = r.behind_s = 0.0
        _tell(groups, e, k)


@compiled(arrays=False)
def _tell(groups: Groups, e: int, k: int) -> bool:
    """What a member could begin now is ready: the training of what is sampled, and a rollout with weights that are fresh enough.
    Returns whether there is such a thing."""
    group, members, m, r = groups.groups[e], groups.members[e], groups.members[e, k], groups.progress[e, k]
    before = group.requests
    if m.waits_training == 0 and m.trains == 0 and r.trained < r.sampled:
        _ready(group, members, m, TRAINING)
    if m.waits_rollout == 0 and m.rolls == NOTHING and r.sampled <= r.iteration + m.staleness:
        _ready(group, members, m, ROLLOUT)
    return bool(group.requests > before)


@compiled(arrays=False)
def _end(groups: Groups, e: int, k: int, what: int, now_s: float, tails: TailParameters) -> bool:
    """What a member waited for is over; returns whether a dispatcher is told of it."""
    m, r = groups.members[e, k], groups.progress[e, k]
    if what == SYNC:
        return _iterate(groups, e, k, now_s)
    if what == TRAINING:
        r.training_until_s = np.inf
        finish_training(groups, e, k, now_s)
        r.trained += 1
        if m.sync_s > 0:
            clock = groups.clocks[e]
            clock.stamps += 1
            sync = groups.syncs[e, k, (r.trained - 1) % groups.syncs.shape[2]]
            sync[0] = now_s + m.sync_s
            sync[1] = clock.stamps
            _tell(groups, e, k)
        else:
            _iterate(groups, e, k, now_s)
        return True
    r.until_s = np.inf
    if what == THRESHOLD:
        pass_threshold(groups, e, k, now_s, tails)
    else:
        finish_rollout(groups, e, k, now_s, tails)
        r.sampled += 1
        _tell(groups, e, k)
    return True


@compiled(arrays=False)
def _iterate(groups: Groups, e: int, k: int, now_s: float) -> bool:
    """An iteration is over, with its sync; returns whether the member could begin something now."""
    m, r, syncs = groups.members[e, k], groups.progress[e, k], groups.syncs[e, k]
    durations, number, most = groups.durations[e, k], r.iteration, groups.syncs.shape[2]
    rollout_s = (r.rollout_cold_s if number == 0 else 0.0) + r.base_rollout_s * durations[0, number]
    training_s = (r.training_cold_s if number == 0 else 0.0) + r.base_training_s * durations[1, number]
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
    return _tell(groups, e, k)


@compiled(arrays=False)
def _next_beside(groups: Groups, e: int, k: int) -> tuple[float, int, int]:
    """What comes first of a member's training and syncs: when, its stamp, and what it is."""
    r = groups.progress[e, k]
    if r.iteration < r.trained:  # so many syncs are on their way, the oldest ends first
        sync = groups.syncs[e, k, r.iteration % groups.syncs.shape[2]]
        if sync[0] < r.training_until_s or (sync[0] == r.training_until_s and sync[1] < r.training_stamp):
            return sync[0], int(sync[1]), SYNC
    return r.training_until_s, r.training_stamp, TRAINING


@compiled(arrays=False)
def _pass_instant(groups: Groups, e: int, tails: TailParameters) -> None:
    """Go to the next time at which something ends that a dispatcher is told of, and end it; or to the end of the episode."""
    group, clock, news = groups.groups[e], groups.clocks[e], False
    while not news:
        first_s = np.inf
        for k in range(group.n):
            first_s = min(first_s, groups.progress[e, k].until_s, _next_beside(groups, e, k)[0])
        if first_s > clock.horizon_s:
            group.now_s = clock.horizon_s
            clock.over = 1
            return
        now_s = max(first_s, group.now_s)
        until_s = now_s + INSTANT_S
        while True:
            best, best_s, best_stamp, what = -1, np.inf, 0, NOTHING
            for k in range(group.n):
                r = groups.progress[e, k]
                if r.until_s <= until_s and (r.until_s < best_s or (r.until_s == best_s and r.stamp < best_stamp)):
                    best, best_s, best_stamp, what = k, r.until_s, r.stamp, r.next
                at_s, stamp, beside = _next_beside(groups, e, k)
                if at_s <= until_s and (at_s < best_s or (at_s == best_s and stamp < best_stamp)):
                    best, best_s, best_stamp, what = k, at_s, stamp, beside
            if best < 0:
                break
            now_s = max(now_s, best_s)
            news = _end(groups, e, best, what, best_s, tails) or news
        group.now_s = now_s


@compiled(arrays=False)
def carry_out(groups: Groups, e: int, row: int, tails: TailParameters) -> None:
    """Do what a row says: wait until something ends, start a phase, or migrate a tail."""
    k, phase = choice_of(groups.members[e], row)
    if phase == NOTHING:
        _pass_instant(groups, e, tails)
    elif phase == TAIL:
        migrate(groups, e, k, tails)
    else:
        start(groups, e, k, phase, tails)
