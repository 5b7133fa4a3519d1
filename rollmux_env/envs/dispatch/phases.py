"""How a phase begins, changes its speed and ends, compiled: what `rollmux_env.replay.event` does with one, as arrays."""

from __future__ import annotations

from rollmux_env.envs.dispatch.types import THRESHOLD, Groups, TailParameters
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import pace, rules
from rollmux_env.kernel.dispatch.rows import ROLLOUT, TAIL, TRAINING, TRAINING_POOL
from rollmux_env.kernel.period import own_period

_grant, _finish, _migrate, _threshold = twin(rules.grant), twin(rules.finish), twin(rules.migrate), twin(rules.threshold)
_set_out, _advance, _pass = twin(pace.set_out), twin(pace.advance), twin(pace.pass_threshold)
_ends_s, _tail_s = twin(pace.ends_s), twin(pace.tail_s)


@compiled(arrays=False)
def _wake(groups: Groups, e: int, k: int, at_s: float, what: int) -> None:
    """Something comes next for a member's rollout."""
    clock, r = groups.clocks[e], groups.progress[e, k]
    clock.stamps += 1
    r.stamp = clock.stamps
    r.until_s = at_s
    r.next = what


@compiled(arrays=False)
def start(groups: Groups, e: int, k: int, phase: int, tails: TailParameters) -> None:
    """A phase that a member waits for has its permit."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.progress[e, k]
    _grant(group, groups.members[e], m, phase)
    switch_s, durations = _switch_s(groups, e, k, phase), groups.durations[e, k]
    if phase == TRAINING:
        clock.stamps += 1
        r.training_stamp = clock.stamps
        r.training_switch_s = switch_s
        r.training_until_s = group.now_s + (switch_s + r.base_training_s * durations[1, r.trained])
        return
    r.began_s = group.now_s
    r.start_s = group.now_s
    r.switch_s = switch_s
    _set_out(r, group.now_s + switch_s, r.base_rollout_s * durations[0, r.sampled], durations[2, r.sampled])
    _go_on(groups, e, k, tails)


@compiled(arrays=False)
def pass_threshold(groups: Groups, e: int, k: int, now_s: float, tails: TailParameters) -> None:
    """So much of a rollout is done that the rest may be migrated."""
    _threshold(groups.members[e, k])
    _pass(groups.progress[e, k], now_s)
    _go_on(groups, e, k, tails)


@compiled(arrays=False)
def _go_on(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """A rollout goes on with what tails leave of its nodes, to its threshold or to its end."""
    m, r = groups.members[e, k], groups.progress[e, k]
    rate = tails.rate if m.nodes & groups.groups[e].tails != 0 else 1.0
    _wake(groups, e, k, _ends_s(r, m.passed == 1, rate), ROLLOUT if m.passed == 1 else THRESHOLD)


@compiled(arrays=False)
def migrate(groups: Groups, e: int, k: int, tails: TailParameters) -> None:
    """The tail of a member's rollout leaves its nodes but for a share."""
    group, r = groups.groups[e], groups.progress[e, k]
    at_s = _tail_s(r, group.now_s, tails.move_s, groups.durations[e, k, 3, r.sampled])
    _close(groups, e, k, group.tails, group.now_s, tails.share)
    _migrate(group, groups.members[e, k])
    groups.clocks[e].migrations += 1
    _wake(groups, e, k, at_s, ROLLOUT)


@compiled(arrays=False)
def finish_training(groups: Groups, e: int, k: int, now_s: float) -> None:
    """The training of a member is over; of a stale one all of its iteration's work is done then, and none before."""
    group, clock, m = groups.groups[e], groups.clocks[e], groups.members[e, k]
    began_s = m.training_since_s
    _span(groups, e, k, TRAINING, 1.0, TRAINING_POOL, now_s)
    _finish(group, m, TRAINING, now_s - began_s, True)
    if m.staleness > 0:
        clock.work_s += own_period(m.planned_rollout_s, m.planned_training_s, m.sync_s, m.staleness)
    else:
        clock.work_s += m.planned_training_s + m.sync_s


@compiled(arrays=False)
def finish_rollout(groups: Groups, e: int, k: int, now_s: float, tails: TailParameters) -> None:
    """A rollout is over and its nodes are free; if it was a tail, rollouts that shared nodes with it have them to themselves."""
    group, clock, m, r = groups.groups[e], groups.clocks[e], groups.members[e, k], groups.progress[e, k]
    was_tail, before = m.rolls == TAIL, group.tails
    _close(groups, e, k, before, now_s, tails.share)
    _finish(group, m, ROLLOUT, now_s - r.began_s, True)
    if m.staleness == 0:
        clock.work_s += m.planned_rollout_s
    if was_tail:
        for j in range(group.n):
            o = groups.members[e, j]
            if o.rolls == ROLLOUT and o.nodes & m.nodes != 0:
                _advance(groups.progress[e, j], now_s)
                _close(groups, e, j, before, now_s, tails.share)
                _go_on(groups, e, j, tails)


@compiled(arrays=False)
def _switch_s(groups: Groups, e: int, k: int, phase: int) -> float:
    """Seconds of the switch that a phase begins with; its nodes now run its job."""
    nodes, r = TRAINING_POOL if phase == TRAINING else groups.members[e, k].nodes, groups.progress[e, k]
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
    """The shares of the nodes that a member's rollout holds change now, or it is over; `tails` have been there until now."""
    m, r = groups.members[e, k], groups.progress[e, k]
    if m.rolls == TAIL:
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
    clock, r, trains = groups.clocks[e], groups.progress[e, k], what == TRAINING
    span = groups.history[e, clock.spans % groups.history.shape[1]]
    clock.spans += 1
    span.member = k
    span.what = what
    span.nodes = nodes
    span.share = share
    span.iteration = r.trained if trains else r.sampled
    span.start_s = groups.members[e, k].training_since_s if trains else r.start_s
    span.end_s = now_s
    span.switch_s = min(r.training_switch_s if trains else r.switch_s, now_s - span.start_s)
