"""What happens in a group at each instant, compiled: the event replay of one group as arrays.

The same as `rollmux_env.replay.event` with a `Dispatcher`, for members that all join at time 0 and stay: what comes together comes
in the same order, and the same choices start the same phases at the same times.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.dispatch.phases import THRESHOLD, finish, go_on, migrate, start, wake
from rollmux_env.envs.dispatch.types import MOST_AHEAD, NOTHING, ROLLOUT, SYNC, TRAINING, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled

INSTANT_S = 1e-6  # times this close are one instant, as in every replay


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
        groups.members[e, k].beside_waits = 0
        groups.members[e, k].beside_runs = 0
    for k in range(group.n):
        m, r = groups.members[e, k], groups.progress[e, k]
        m.turn_rollout = 0
        m.turn_training = 0
        m.runs = NOTHING
        m.passed = 0
        m.since_s = 0.0
        m.beside_since_s = 0.0
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
        if m.staleness > 0:
            p = groups.pipelines[e, k]
            p.sampled = 0
            p.trained = 0
            p.until_s = np.inf
            p.sampled_s = 0.0
            p.trained_s = 0.0
        _ready(groups, e, k, ROLLOUT)


@compiled(arrays=False)
def _ready(groups: Groups, e: int, k: int, phase: int) -> None:
    m, clock = groups.members[e, k], groups.clocks[e]
    if phase == TRAINING and m.staleness > 0:
        m.beside_waits = 1
        m.beside_number = clock.requests
        m.beside_overtaken = 0
    else:
        m.waits = phase
        m.number = clock.requests
        m.overtaken = 0
    clock.requests += 1


@compiled(arrays=False)
def _tell(groups: Groups, e: int, k: int) -> bool:
    """What a stale member could begin now is ready: the training of what is sampled, and a rollout with weights that are fresh
    enough. Returns whether there is such a thing."""
    before, m, p = groups.clocks[e].requests, groups.members[e, k], groups.pipelines[e, k]
    if m.beside_waits == 0 and m.beside_runs == 0 and p.trained < p.sampled:
        _ready(groups, e, k, TRAINING)
    if m.waits == NOTHING and m.runs == NOTHING and p.sampled <= groups.progress[e, k].iteration + m.staleness:
        _ready(groups, e, k, ROLLOUT)
    return bool(groups.clocks[e].requests > before)


@compiled(arrays=False)
def _end(groups: Groups, e: int, k: int, what: int, now_s: float, tails: TailParameters) -> bool:
    """What a member waited for is over; returns whether a dispatcher is told of it."""
    m, r = groups.members[e, k], groups.progress[e, k]
    stale = m.staleness > 0
    if what in (ROLLOUT, THRESHOLD) or not stale:
        r.until_s = np.inf
    if what == THRESHOLD:
        r.left_s = r.tail_s
        r.went_s = now_s
        m.passed = 1
        go_on(groups, e, k, tails)
        return True
    if what == ROLLOUT:
        finish(groups, e, k, ROLLOUT, now_s, tails)
        if stale:
            groups.pipelines[e, k].sampled += 1
            _tell(groups, e, k)
        else:
            _ready(groups, e, k, TRAINING)
        return True
    if what == TRAINING:
        finish(groups, e, k, TRAINING, now_s, tails)
        if m.sync_s > 0 and stale:
            clock = groups.clocks[e]
            clock.stamps += 1
            sync = groups.syncs[e, k, (groups.pipelines[e, k].trained - 1) % MOST_AHEAD]
            sync[0] = now_s + m.sync_s
            sync[1] = clock.stamps
            _tell(groups, e, k)
            return True
        if m.sync_s > 0:
            wake(groups, e, k, now_s + m.sync_s, SYNC)
            return True
    return _iterate(groups, e, k, now_s) or what == TRAINING


@compiled(arrays=False)
def _iterate(groups: Groups, e: int, k: int, now_s: float) -> bool:
    """An iteration is over, with its sync; returns whether the member could begin something now."""
    m, r = groups.members[e, k], groups.progress[e, k]
    durations, number = groups.durations[e, k], r.iteration
    first, stale = number == 0, m.staleness > 0
    rollout_s = (r.rollout_cold_s if first else 0.0) + r.base_rollout_s * durations[0, number]
    training_s = (r.training_cold_s if first else 0.0) + r.base_training_s * durations[1, number]
    if stale:
        p, syncs = groups.pipelines[e, k], groups.syncs[e, k]
        fresh_s = syncs[(number - 1 - m.staleness) % MOST_AHEAD, 2] if number > m.staleness else 0.0
        p.sampled_s = max(p.sampled_s, fresh_s) + rollout_s
        p.trained_s = max(p.trained_s, p.sampled_s) + training_s
        syncs[number % MOST_AHEAD, 2] = p.trained_s + m.sync_s
        r.solo_s = p.trained_s + m.sync_s
    else:
        r.solo_s += rollout_s
        r.solo_s += training_s
        r.solo_s += m.sync_s
    r.iteration += 1
    r.ended_s = now_s
    behind_s = max(0.0, now_s - m.slo * r.solo_s)
    groups.clocks[e].behind_s += behind_s - r.behind_s
    r.behind_s = behind_s
    if stale:
        return _tell(groups, e, k)
    _ready(groups, e, k, ROLLOUT)
    return True


@compiled(arrays=False)
def _next_beside(groups: Groups, e: int, k: int) -> tuple[float, int, int]:
    """What comes first of a stale member's training and syncs: when, its stamp, and what it is."""
    p, iteration = groups.pipelines[e, k], groups.progress[e, k].iteration
    if iteration < p.trained:  # so many syncs are on their way, the oldest ends first
        sync = groups.syncs[e, k, iteration % MOST_AHEAD]
        if sync[0] < p.until_s or (sync[0] == p.until_s and sync[1] < p.stamp):
            return sync[0], int(sync[1]), SYNC
    return p.until_s, p.stamp, TRAINING


@compiled(arrays=False)
def _pass_instant(groups: Groups, e: int, tails: TailParameters) -> None:
    """Go to the next time at which something ends that a dispatcher is told of, and end it; or to the end of the episode."""
    group, clock, news = groups.groups[e], groups.clocks[e], False
    while not news:
        first_s = np.inf
        for k in range(group.n):
            first_s = min(first_s, groups.progress[e, k].until_s)
            if groups.members[e, k].staleness > 0:
                first_s = min(first_s, _next_beside(groups, e, k)[0])
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
                if groups.members[e, k].staleness > 0:
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
    members = groups.members[e]
    if row == 0:
        _pass_instant(groups, e, tails)
    elif row > len(members):
        start(groups, e, row - 1 - len(members), TRAINING, tails)
    elif members[row - 1].waits != NOTHING:
        start(groups, e, row - 1, members[row - 1].waits, tails)
    else:
        migrate(groups, e, row - 1, tails)
