"""How a phase begins, changes its speed and ends, compiled: what `rollmux_env.replay.event` does with one, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.dispatch.actions import nodes_of
from rollmux_env.envs.dispatch.types import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Records

THRESHOLD = 5  # what comes next for a rollout that is not past it


@compiled(arrays=False)
def wake(groups: Groups, e: int, k: int, at_s: float, what: int) -> None:
    """Something comes next for a member; of a stale one, for its rollout."""
    clock, r = groups.clocks[e], groups.progress[e, k]
    clock.stamps += 1
    r.stamp = clock.stamps
    r.until_s = at_s
    r.next = what


@compiled(arrays=False)
def start(groups: Groups, e: int, k: int, phase: int, tails: TailParameters) -> None:
    """A phase that a member waits for has its permit."""
    group, m, r = groups.groups[e], groups.members[e, k], groups.progress[e, k]
    beside = phase == TRAINING and m.staleness > 0
    now_s, nodes = group.now_s, nodes_of(m, phase)
    number = m.beside_number if beside else m.number
    if beside:
        m.beside_waits = 0
    else:
        m.waits = NOTHING
    for j in range(group.n):
        o = groups.members[e, j]
        if o.waits != NOTHING and o.number < number and nodes_of(o, o.waits) & nodes != 0:
            o.overtaken += 1
        if o.beside_waits != 0 and o.beside_number < number and TRAINING_POOL & nodes != 0:
            o.beside_overtaken += 1
    group.busy |= nodes
    switch_s = _switch_s(groups, e, k, phase)
    if beside:
        p, clock = groups.pipelines[e, k], groups.clocks[e]
        m.beside_runs = 1
        m.beside_since_s = now_s
        p.began_s = now_s
        p.switch_s = switch_s
        clock.stamps += 1
        p.stamp = clock.stamps
        p.until_s = now_s + (switch_s + r.base_training_s * groups.durations[e, k, 1, p.trained])
        return
    m.runs = phase
    m.passed = 0
    m.since_s = now_s
    r.began_s = now_s
    r.start_s = now_s
    r.switch_s = switch_s
    durations, number = groups.durations[e, k], _rollout(groups, e, k)
    if phase == TRAINING:
        wake(groups, e, k, now_s + (switch_s + r.base_training_s * durations[1, number]), TRAINING)
    else:
        r.went_s = now_s + switch_s
        r.left_s = r.base_rollout_s * durations[0, number]
        r.tail_s = r.left_s * (1 - durations[2, number])
        go_on(groups, e, k, tails)


@compiled(arrays=False)
def go_on(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """A rollout goes on with what tails leave of its nodes, to its threshold or to its end."""
    m, r = groups.members[e, k], groups.progress[e, k]
    r.rate = tails.rate if m.nodes & groups.groups[e].tails != 0 else 1.0
    part_s = max(0.0, r.left_s - (0.0 if m.passed == 1 else r.tail_s))
    wake(groups, e, k, r.went_s + part_s / r.rate, ROLLOUT if m.passed == 1 else THRESHOLD)


@compiled(arrays=False)
def migrate(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
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
    stretch = groups.durations[e, k, 3, _rollout(groups, e, k)]
    wake(groups, e, k, now_s + tails.move_s + max(0.0, r.left_s) * stretch, ROLLOUT)


@compiled(arrays=False)
def finish(groups: Groups, e: int, k: int, phase: int, now_s: float, tails: TailParameters) -> None:
    """A phase is over and its nodes are free."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.progress[e, k]
    if phase == TRAINING and m.staleness > 0:
        _finish_beside(groups, e, k, now_s)
        return
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
    _count_own(m, r)
    if m.staleness == 0:
        clock.work_s += m.planned_rollout_s if phase == ROLLOUT else m.planned_training_s + m.sync_s
    if tail:
        for j in range(group.n):
            if groups.members[e, j].runs == ROLLOUT and groups.members[e, j].nodes & m.nodes != 0:
                _advance(groups.progress[e, j], now_s)
                _close(groups, e, j, before, now_s, tails.share)
                go_on(groups, e, j, tails)


@compiled(arrays=False)
def _finish_beside(groups: Groups, e: int, k: int, now_s: float) -> None:
    """The training of a stale member is over: an iteration's work is done, what it sampled before has not been any."""
    m, r, p = groups.members[e, k], groups.progress[e, k], groups.pipelines[e, k]
    _span(groups, e, k, TRAINING, 1.0, TRAINING_POOL, now_s)
    groups.groups[e].busy &= ~TRAINING_POOL
    m.turn_training += 1
    m.beside_runs = 0
    r.sum_training_s += now_s - p.began_s
    r.trainings_done += 1
    m.training_s = r.sum_training_s / r.trainings_done
    _count_own(m, r)
    p.until_s = np.inf
    p.trained += 1
    groups.clocks[e].work_s += own_period(m.planned_rollout_s, m.planned_training_s, m.sync_s, float(m.staleness))


@compiled(arrays=False)
def _count_own(m: Records, r: Records) -> None:
    """What a member's finished phases take alone: those of a stale one partly beside each other."""
    m.own_s = r.sum_rollout_s + r.sum_training_s
    if m.staleness > 0:
        alone_s = own_period(m.rollout_s, m.training_s, m.sync_s, float(m.staleness))
        m.own_s *= alone_s / (m.rollout_s + m.training_s + m.sync_s)


@compiled(arrays=False)
def _rollout(groups: Groups, e: int, k: int) -> Any:
    """Number of a member's rollout that runs or comes next; on-policy also of its training."""
    return groups.pipelines[e, k].sampled if groups.members[e, k].staleness > 0 else groups.progress[e, k].iteration


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
def _span(groups: Groups, e: int, k: int, what: int, share: float, nodes: int, now_s: float) -> None:
    """Keep what a phase held until now."""
    if nodes == 0:
        return
    clock, r = groups.clocks[e], groups.progress[e, k]
    span = groups.history[e, clock.spans % groups.history.shape[1]]
    clock.spans += 1
    span.member = k
    span.what = what
    span.nodes = nodes
    span.end_s = now_s
    span.share = share
    if what == TRAINING and groups.members[e, k].staleness > 0:
        p = groups.pipelines[e, k]
        span.iteration = p.trained
        span.start_s = p.began_s
        span.switch_s = min(p.switch_s, now_s - p.began_s)
        return
    span.iteration = _rollout(groups, e, k)
    span.start_s = r.start_s
    span.switch_s = min(r.switch_s, now_s - r.start_s)
