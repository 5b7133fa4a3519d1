"""The features of a decision: the same numbers from a `Dispatcher` and in the environment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import choice_of, round_robin, write_mask
from rollmux_env.envs.dispatch.expected import own_s, rollout_left_s, sampled, slack_s, training_left_s, until_s
from rollmux_env.envs.dispatch.observation import GROUP_FEATURES, ROW_FEATURES, STATE_FEATURES
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import turns
from rollmux_env.kernel.dispatch.rows import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL, WAITS
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Records

Array = NDArray[np.float32]

_in_turn = twin(turns.in_turn)

_GROUP, _ROW, _STATE = len(GROUP_FEATURES), len(ROW_FEATURES), len(STATE_FEATURES)  # the first columns of stale members


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
    """Write an observation: the mask, and the features in the order of their names; returns what `write_mask` does."""
    count = write_mask(group, members, mask)
    n, now_s = group.n, group.now_s
    job[:] = 0
    rows[:] = 0
    cluster[:] = 0
    if n == 0:
        return count
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
        slack = slack_s(m, now_s)
        least = min(least, slack)
        slacks += slack / n
        if m.waits_training == WAITS:
            training_free_s += m.training_s
        if m.rolls != NOTHING:
            next_s = min(next_s, rollout_left_s(m, now_s))
        if m.trains != 0:
            busy_s = training_left_s(m, now_s)
            next_s = min(next_s, busy_s)
    training_free_s += busy_s
    rollout_load = 0.0
    for node in range(1, 63):
        bit = 1 << node
        if bit > every:
            break
        load = 0.0
        for k in range(n):
            if members[k].nodes & bit != 0:
                load += members[k].rollout_s
        rollout_load = max(rollout_load, load)
    most = max(training_load, rollout_load, cycle_s)
    n_nodes = max(1, _bits(every))
    job[0] = n / (1 + n)
    job[1] = training_load / most
    job[2] = rollout_load / most
    job[3] = cycle_s / most
    job[4] = against
    for k in range(n):
        cluster[0] += (members[k].waits_rollout == WAITS) / n
        cluster[1] += (members[k].waits_training == WAITS) / n
    cluster[2] = _squash(busy_s / unit_s)
    cluster[3] = _bits(group.busy & every) / n_nodes
    cluster[4] = _bits(group.tails & every) / n_nodes
    cluster[5] = _squash(least / unit_s)
    cluster[6] = _squash(slacks / unit_s)
    cluster[7] = _squash(next_s / unit_s) if next_s < np.inf else 1.0
    if len(job) > _GROUP:
        for k in range(n):
            m = members[k]
            job[_GROUP] += (m.staleness > 0) / n
            cluster[_STATE] += _samples(m) / n
    chosen = round_robin(group, members, True)
    rows[chosen, 5] = 1.0
    rows[0, 0] = 1.0
    rows[0, 6] = cluster[7]
    for at in range(1, len(mask)):
        if mask[at] == 1:
            k, phase = choice_of(members, at)
            _write_row(group, members, k, phase, rows[at], unit_s, training_free_s, n_nodes)
    return count


@compiled(arrays=False)
def _write_row(
    group: Records, members: Records, k: int, phase: int, row: Array, unit_s: float, training_free_s: float, n_nodes: int
) -> None:
    m, n, now_s = members[k], group.n, group.now_s
    trains = phase == TRAINING
    kind = TRAINING if trains else ROLLOUT
    nodes = TRAINING_POOL if trains else m.nodes
    row[phase] = 1.0
    row[4] = 1.0 if phase != TAIL and _in_turn(group, members, m, phase, 0) else 0.0
    seconds = rollout_left_s(m, now_s) if phase == TAIL else (m.training_s if trains else m.rollout_s)
    slack = slack_s(m, now_s)
    row[6] = _squash(seconds / unit_s)
    row[7] = _squash((m.rollout_s if trains else m.training_s) / unit_s)
    row[8] = _squash(slack / unit_s)
    row[9] = _squash(slack / (min(m.slo, 100.0) * own_s(m) + unit_s))
    row[10] = min(1.0, (m.training_overtaken if trains else m.rollout_overtaken) / n) if phase != TAIL else 0.0
    number = m.training_number if trains else m.rollout_number
    rivals_s, shortest_s, least, next_in, next_for, next_slack, behind = 0.0, np.inf, np.inf, np.inf, 0.0, 0.0, 0
    for j in range(n):
        o = members[j]
        if j == k or (not trains and o.nodes & nodes == 0):
            continue
        other_s = o.training_s if trains else o.rollout_s
        behind = max(behind, (m.turn_training - o.turn_training) if trains else (m.turn_rollout - o.turn_rollout))
        if (o.waits_training if trains else o.waits_rollout) == WAITS:
            rivals_s += other_s
            shortest_s = min(shortest_s, other_s)
            least = min(least, slack_s(o, now_s))
            if phase != TAIL and (o.training_number if trains else o.rollout_number) < number:
                row[11] += 1 / n
        else:
            wants_s = until_s(o, kind, now_s, training_free_s)
            if wants_s < next_in:
                next_in, next_for, next_slack = wants_s, other_s, slack_s(o, now_s)
    row[12] = _squash(rivals_s / unit_s)
    row[13] = _squash(shortest_s / unit_s) if rivals_s > 0 else 1.0
    row[14] = _squash(least / unit_s) if rivals_s > 0 else 1.0
    row[15] = _squash(next_in / unit_s) if next_in < np.inf else 1.0
    row[16] = _squash(next_for / unit_s)
    row[17] = _squash(next_slack / unit_s)
    row[18] = _bits(nodes & ~TRAINING_POOL) / n_nodes
    row[19] = _squash((training_free_s - (seconds if not trains else 0.0)) / unit_s)
    row[20] = 1.0 if nodes & group.tails != 0 else 0.0
    row[21] = _squash(behind / 1.0)
    row[22] = min(1.0, (now_s - m.rollout_since_s) / (2 * m.rollout_s)) if phase == TAIL else 0.0
    if len(row) > _ROW:
        row[_ROW] = m.staleness / (1 + m.staleness)
        row[_ROW + 1] = _samples(m)
        row[_ROW + 3] = 1.0
        if m.staleness > 0 and trains:
            row[_ROW + 2] = _squash(rollout_left_s(m, now_s) / unit_s)
            row[_ROW + 3] = 1.0 if m.rolls == NOTHING and m.waits_rollout != WAITS else 0.0
        elif m.staleness > 0:
            row[_ROW + 2] = _squash(training_left_s(m, now_s) / unit_s)
            row[_ROW + 3] = 1.0 if m.trains == 0 and m.waits_training != WAITS else 0.0


@compiled(arrays=False)
def _samples(m: Records) -> float:
    """Rollouts of a member that are over whose trainings are not, over 1 + its staleness; 0 on-policy."""
    return min(1.0, max(0, sampled(m)) / (1 + m.staleness)) if m.staleness > 0 else 0.0
