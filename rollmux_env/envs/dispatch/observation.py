"""Observations of a dispatch decision: names and values of the features, the same for a `Dispatcher` and the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import choice_of, round_robin, side_of, write_mask
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import turns
from rollmux_env.kernel.dispatch.rows import ABSENT, NOTHING, TAIL, TRAINING, TRAINING_POOL, WAITS
from rollmux_env.kernel.feature_tables import Names, columns
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Records

Array = NDArray[np.float32]

_in_turn = twin(turns.in_turn)

# Seconds are relative to the longest member's planned iteration, as x / (1 + |x|). "Its nodes" are those of the row's phase.
# Iterations are those of a member alone; for a stale member, T_solo.
GROUP_FEATURES = (
    "members",  # as n / (1 + n)
    "training load",  # expected trainings, over the largest of all loads and iterations
    "rollout load",  # that of the most loaded rollout node
    "iteration",  # the longest iteration
    "against plan",  # mean of expected over planned iterations, capped at 2, halved
)
ROW_FEATURES = (
    "wait",  # 1 for the row that waits
    "rollout",  # kind of the phase that would start
    "training",
    "tail",  # 1 if the row migrates the tail of a rollout
    "in turn",  # whether no member comes before it in strict round robin
    "round robin",  # whether strict round robin with migration would choose this row
    "seconds",  # expected seconds; for a tail, the rest of the rollout; for the row that waits, until a phase ends
    "other phase",  # expected seconds of the member's other phase
    "slack",  # SLO * seconds of the member's phases - time since it joined
    "relative slack",  # the same over SLO * own seconds plus a unit
    "overtaken",  # over the members
    "younger",  # number of phases that have waited longer for its nodes, over the members
    "rivals",  # expected seconds of all other phases that wait for its nodes
    "shortest rival",
    "rival's slack",  # the least one
    "next in",  # expected seconds until another phase needs its nodes, 1 if none will
    "next for",  # expected seconds of that phase
    "next one's slack",
    "nodes",  # share of the group's rollout nodes
    "training free",  # expected seconds until no training waits or runs, minus those of the row's rollout
    "beside a tail",
    "lead",  # meta-iterations ahead of the slowest member that shares its nodes
    "run",  # for a tail: elapsed over expected seconds
)
STATE_FEATURES = (
    "waiting rollouts",  # over the members
    "waiting trainings",
    "training left",  # expected seconds of the running training
    "busy nodes",  # share of the rollout nodes
    "tails",
    "least slack",
    "mean slack",
    "next end",  # expected seconds until a running phase ends, 1 if nothing runs
)
# Further features if members may be stale, each after the others of its kind.
STALE_GROUP_FEATURES = ("stale members",)  # share of stale members
STALE_ROW_FEATURES = (
    "staleness",  # as e / (1 + e)
    "sampled",  # rollouts that have ended without their trainings, over 1 + e
    "other left",  # expected seconds of what the member runs on the other side
    "holds up",  # whether the member neither runs nor waits on the other side; always 1 for an on-policy member
)
STALE_STATE_FEATURES = ("sampled",)  # mean over the members


ON_POLICY = Names(GROUP_FEATURES, ROW_FEATURES, STATE_FEATURES)
STALE = Names(GROUP_FEATURES + STALE_GROUP_FEATURES, ROW_FEATURES + STALE_ROW_FEATURES, STATE_FEATURES + STALE_STATE_FEATURES)
_OF_GROUP, _OF_ROW, _OF_STATE = (columns(names) for names in STALE)
_GROUP, _ROW = len(GROUP_FEATURES), len(ROW_FEATURES)  # the first columns of stale members


def observed(members: int, stale: bool) -> tuple[int, Names]:
    """Return the number of rows and the feature names of groups with at most `members` members, which may be stale or not."""
    return 1 + members * (1 + stale), STALE if stale else ON_POLICY


@compiled(arrays=False)
def _squash(x: float) -> float:
    return x / (1 + abs(x))


@compiled(arrays=False)
def _bits(mask: int) -> int:
    count = 0
    while mask != 0:
        mask &= mask - 1
        count += 1
    return count


@compiled(arrays=False)
def write_observation(group: Records, members: Records, job: Array, rows: Array, cluster: Array, mask: NDArray[np.int8]) -> int:
    """Write an observation: the mask, and the features in the order of their names. Return the result of `write_mask`."""
    count = write_mask(group, members, mask)
    job[:] = 0
    rows[:] = 0
    cluster[:] = 0
    if group.n == 0:
        return count
    unit_s, training_free_s, every = _write_group(group, members, job, cluster)
    chosen = round_robin(group, members, True)
    rows[chosen, _OF_ROW.round_robin] = 1.0
    rows[0, _OF_ROW.wait] = 1.0
    rows[0, _OF_ROW.seconds] = cluster[_OF_STATE.next_end]
    n_nodes = max(1, _bits(every))
    for at in range(1, len(mask)):
        if mask[at] == 1:
            k, phase = choice_of(members, at)
            _write_row(group, members, k, phase, rows[at], unit_s, training_free_s, n_nodes)
            if len(rows[0]) > _ROW:
                _write_stale(members[k], phase == TRAINING, group.now_s, unit_s, rows[at])
    return count


@compiled(arrays=False)
def _write_group(group: Records, members: Records, job: Array, cluster: Array) -> Any:
    """Write the features of the group and of its state.

    Returns:
        Planned iteration of the longest member, seconds; expected seconds until no training waits or runs; all rollout nodes.
    """
    n, now_s = group.n, group.now_s
    unit_s, every, training_load, cycle_s, against, least, slacks = 1e-9, 0, 0.0, 0.0, 0.0, np.inf, 0.0
    training_free_s, busy_s, next_s = 0.0, 0.0, np.inf
    for k in range(n):
        m = members[k]
        planned_s = own_period(m.planned_rollout_s, m.planned_training_s, m.sync_s, m.staleness)
        expected_s = own_period(m.rollout_s, m.training_s, m.sync_s, m.staleness)
        unit_s = max(unit_s, planned_s)
        every |= m.nodes & ~TRAINING_POOL
        training_load += m.training_s
        cycle_s = max(cycle_s, expected_s)
        against += min(2.0, expected_s / planned_s) / (2 * n)
        slack = _slack_s(m, now_s)
        least = min(least, slack)
        slacks += slack / n
        cluster[_OF_STATE.waiting_rollouts] += (m.waits_rollout == WAITS) / n
        cluster[_OF_STATE.waiting_trainings] += (m.waits_training == WAITS) / n
        if m.waits_training == WAITS:
            training_free_s += m.training_s
        if m.rolls != NOTHING:
            next_s = min(next_s, _rollout_left_s(m, now_s))
        if m.trains != 0:
            busy_s = _training_left_s(m, now_s)
            next_s = min(next_s, busy_s)
        if len(job) > _GROUP:
            job[_OF_GROUP.stale_members] += (m.staleness > 0) / n
            cluster[_OF_STATE.sampled] += _samples(m) / n
    rollout_load = _rollout_load(members, n, every)
    most, n_nodes = max(training_load, rollout_load, cycle_s), max(1, _bits(every))
    job[_OF_GROUP.members] = n / (1 + n)
    job[_OF_GROUP.training_load] = training_load / most
    job[_OF_GROUP.rollout_load] = rollout_load / most
    job[_OF_GROUP.iteration] = cycle_s / most
    job[_OF_GROUP.against_plan] = against
    cluster[_OF_STATE.training_left] = _squash(busy_s / unit_s)
    cluster[_OF_STATE.busy_nodes] = _bits(group.busy & every) / n_nodes
    cluster[_OF_STATE.tails] = _bits(group.tails & every) / n_nodes
    cluster[_OF_STATE.least_slack] = _squash(least / unit_s)
    cluster[_OF_STATE.mean_slack] = _squash(slacks / unit_s)
    cluster[_OF_STATE.next_end] = _share(next_s, unit_s)
    return unit_s, training_free_s + busy_s, every


@compiled(arrays=False)
def _rollout_load(members: Records, n: int, every: int) -> float:
    """Return the expected seconds of all rollouts on the most loaded node."""
    most = 0.0
    for node in range(1, 63):
        bit = 1 << node
        if bit > every:
            break
        load = 0.0
        for k in range(n):
            if members[k].nodes & bit != 0:
                load += members[k].rollout_s
        most = max(most, load)
    return most


@compiled(arrays=False)
def _share(seconds: float, unit_s: float) -> float:
    """Return seconds in the unit of the features, or 1 if they are infinite."""
    return _squash(seconds / unit_s) if seconds < np.inf else 1.0


@compiled(arrays=False)
def _write_row(
    group: Records, members: Records, k: int, phase: int, row: Array, unit_s: float, training_free_s: float, n_nodes: int
) -> None:
    """Write the features of a row that starts a phase of member k or migrates its tail."""
    m, now_s, trains, tail = members[k], group.now_s, phase == TRAINING, phase == TAIL
    nodes = TRAINING_POOL if trains else m.nodes
    expected_s, _, _, overtaken, _ = side_of(m, trains)
    seconds, slack = _rollout_left_s(m, now_s) if tail else expected_s, _slack_s(m, now_s)
    row[phase] = 1.0  # the columns of the kinds of phases are in the order of their codes
    row[_OF_ROW.in_turn] = 1.0 if not tail and _in_turn(group, members, m, phase, 0) else 0.0
    row[_OF_ROW.seconds] = _squash(seconds / unit_s)
    row[_OF_ROW.other_phase] = _squash(side_of(m, not trains)[0] / unit_s)
    row[_OF_ROW.slack] = _squash(slack / unit_s)
    row[_OF_ROW.relative_slack] = _squash(slack / (min(m.slo, 100.0) * _own_s(m) + unit_s))
    row[_OF_ROW.overtaken] = 0.0 if tail else min(1.0, overtaken / group.n)
    row[_OF_ROW.nodes] = _bits(nodes & ~TRAINING_POOL) / n_nodes
    row[_OF_ROW.training_free] = _squash((training_free_s - (0.0 if trains else seconds)) / unit_s)
    row[_OF_ROW.beside_a_tail] = 1.0 if nodes & group.tails != 0 else 0.0
    row[_OF_ROW.run] = min(1.0, (now_s - m.rollout_start_s) / (2 * m.rollout_s)) if tail else 0.0
    _write_rivals(group, members, k, phase, row, unit_s, training_free_s)


@compiled(arrays=False)
def _write_rivals(group: Records, members: Records, k: int, phase: int, row: Array, unit_s: float, training_free_s: float) -> None:
    """Write the features about other phases that need the nodes of a row, now or next."""
    m, n, now_s, trains = members[k], group.n, group.now_s, phase == TRAINING
    _, _, number, _, turn = side_of(m, trains)
    rivals_s, shortest_s, least, next_in, next_for, next_slack, behind = 0.0, np.inf, np.inf, np.inf, 0.0, 0.0, 0
    for j in range(n):
        o = members[j]
        if j == k or (not trains and o.nodes & m.nodes == 0):
            continue
        other_s, waits, other_number, _, other_turn = side_of(o, trains)
        behind = max(behind, turn - other_turn)
        if waits:
            rivals_s += other_s
            shortest_s = min(shortest_s, other_s)
            least = min(least, _slack_s(o, now_s))
            if phase != TAIL and other_number < number:
                row[_OF_ROW.younger] += 1 / n
        else:
            wants_s = _until_s(o, trains, now_s, training_free_s)
            if wants_s < next_in:
                next_in, next_for, next_slack = wants_s, other_s, _slack_s(o, now_s)
    row[_OF_ROW.rivals] = _squash(rivals_s / unit_s)
    row[_OF_ROW.shortest_rival] = _share(shortest_s if rivals_s > 0 else np.inf, unit_s)
    row[_OF_ROW.rivals_slack] = _share(least if rivals_s > 0 else np.inf, unit_s)
    row[_OF_ROW.next_in] = _share(next_in, unit_s)
    row[_OF_ROW.next_for] = _squash(next_for / unit_s)
    row[_OF_ROW.next_ones_slack] = _squash(next_slack / unit_s)
    row[_OF_ROW.lead] = _squash(behind / 1.0)


@compiled(arrays=False)
def _write_stale(m: Records, trains: bool, now_s: float, unit_s: float, row: Array) -> None:
    """Write the features that exist only if members may be stale."""
    row[_OF_ROW.staleness] = m.staleness / (1 + m.staleness)
    row[_OF_ROW.sampled] = _samples(m)
    row[_OF_ROW.holds_up] = 1.0
    if m.staleness > 0:
        idle = m.rolls == NOTHING if trains else m.trains == 0
        row[_OF_ROW.other_left] = _squash((_rollout_left_s(m, now_s) if trains else _training_left_s(m, now_s)) / unit_s)
        row[_OF_ROW.holds_up] = 1.0 if idle and not side_of(m, not trains)[1] else 0.0


@compiled(arrays=False)
def _samples(m: Records) -> float:
    """Return the rollouts of a member that have ended without their trainings, over 1 + its staleness; 0 if it is on-policy."""
    return min(1.0, max(0, _sampled(m)) / (1 + m.staleness)) if m.staleness > 0 else 0.0


@compiled(arrays=False)
def _rollout_left_s(m: Records, now_s: float) -> Any:
    """Return the expected seconds until the rollout or tail of a member ends, or 0 if it runs none."""
    if m.rolls == NOTHING:
        return 0.0
    if m.rolls == TAIL:
        return max(0.1 * m.rollout_s, 0.6 * m.rollout_s - (now_s - m.rollout_start_s))
    return max(0.02 * m.rollout_s, m.rollout_s - (now_s - m.rollout_start_s))


@compiled(arrays=False)
def _training_left_s(m: Records, now_s: float) -> Any:
    """Return the expected seconds until the training of a member ends, or 0 if it runs none."""
    return max(0.02 * m.training_s, m.training_s - (now_s - m.training_start_s)) if m.trains != 0 else 0.0


@compiled(arrays=False)
def _until_s(m: Records, trains: bool, now_s: float, training_free_s: float) -> Any:
    """Return the seconds until a member needs its next training or rollout if it is not held up; infinite while it waits for it."""
    rolling_s, training_s = _rollout_left_s(m, now_s), _training_left_s(m, now_s)
    if trains:
        return _until_training_s(m, rolling_s, training_s)
    return _until_rollout_s(m, rolling_s, training_s, training_free_s)


@compiled(arrays=False)
def _until_training_s(m: Records, rolling_s: float, training_s: float) -> Any:
    rollout_s = rolling_s if m.rolls != NOTHING else m.rollout_s
    if m.waits_training == WAITS:
        return np.inf
    if m.staleness > 0:
        return training_s if _sampled(m) > m.trains else max(training_s, rollout_s)
    return training_s + m.sync_s + m.rollout_s if m.trains != 0 else rollout_s


@compiled(arrays=False)
def _until_rollout_s(m: Records, rolling_s: float, training_s: float, training_free_s: float) -> Any:
    if m.waits_rollout == WAITS or (m.staleness > 0 and m.turn_rollout >= ABSENT):
        return np.inf
    if m.waits_training == WAITS:
        training_s = training_free_s
    if m.staleness > 0:
        return rolling_s if _sampled(m) + (m.rolls != NOTHING) <= m.staleness else max(rolling_s, training_s + m.sync_s)
    if m.rolls != NOTHING and m.trains == 0:
        return rolling_s + m.training_s + m.sync_s
    return training_s + m.sync_s


@compiled(arrays=False)
def _sampled(m: Records) -> Any:
    """Return the rollouts of a stale member that have ended without their trainings, or 0 if it samples no more."""
    return m.turn_rollout - m.turn_training - (m.rolls == TAIL) if m.turn_rollout < ABSENT else 0


@compiled(arrays=False)
def _own_s(m: Records) -> Any:
    """Return the seconds that a member's finished phases take alone. For a stale member they partly overlap."""
    seconds = m.sum_rollout_s + m.sum_training_s
    if m.staleness > 0:
        alone_s = own_period(m.rollout_s, m.training_s, m.sync_s, m.staleness)
        seconds *= alone_s / (m.rollout_s + m.training_s + m.sync_s)
    return seconds


@compiled(arrays=False)
def _slack_s(m: Records, now_s: float) -> Any:
    """Return the seconds by which a member is ahead of its SLO."""
    return min(m.slo, 100.0) * _own_s(m) - (now_s - m.joined_s)
