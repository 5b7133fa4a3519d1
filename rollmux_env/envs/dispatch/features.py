"""The features of a decision: the same numbers from a `Dispatcher` and in the environment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import in_turn, nodes_of, number_of, round_robin, waits_for, write_mask
from rollmux_env.envs.dispatch.expected import beside_left_s, left_s, sampled, slack_s, until_s
from rollmux_env.envs.dispatch.observation import GROUP_FEATURES, ROW_FEATURES, STATE_FEATURES
from rollmux_env.envs.dispatch.types import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Records

Array = NDArray[np.float32]

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
    training_free_s, training_left_s, next_s = 0.0, 0.0, np.inf
    for k in range(n):
        m = members[k]
        planned_s = own_period(m.planned_rollout_s, m.planned_training_s, m.sync_s, float(m.staleness))
        expected_s = own_period(m.rollout_s, m.training_s, m.sync_s, float(m.staleness))
        unit_s = max(unit_s, planned_s)
        every |= nodes_of(m, ROLLOUT) & ~TRAINING_POOL
        training_load += m.training_s
        cycle_s = max(cycle_s, expected_s)
        against += min(2.0, expected_s / planned_s) / (2 * n)
        slack = slack_s(m, now_s)
        least = min(least, slack)
        slacks += slack / n
        if waits_for(m, TRAINING):
            training_free_s += m.training_s
        if m.runs != NOTHING:
            rest_s = left_s(m, now_s)
            next_s = min(next_s, rest_s)
            if m.runs == TRAINING:
                training_left_s = rest_s
        if m.beside_runs != 0:
            training_left_s = beside_left_s(m, now_s)
            next_s = min(next_s, training_left_s)
    training_free_s += training_left_s
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
        cluster[0] += (members[k].waits == ROLLOUT) / n
        cluster[1] += waits_for(members[k], TRAINING) / n
    cluster[2] = _squash(training_left_s / unit_s)
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
    for k in range(n):
        m, beside = members[k], len(members) + k + 1
        if mask[k + 1] == 1:
            _write_row(group, members, k, m.waits if m.waits != NOTHING else TAIL, rows[k + 1], unit_s, training_free_s, n_nodes)
        if m.beside_waits != 0 and mask[beside] == 1:
            _write_row(group, members, k, TRAINING, rows[beside], unit_s, training_free_s, n_nodes)
    return count


@compiled(arrays=False)
def _write_row(
    group: Records, members: Records, k: int, phase: int, row: Array, unit_s: float, training_free_s: float, n_nodes: int
) -> None:
    m, n, now_s = members[k], group.n, group.now_s
    nodes = nodes_of(m, phase)
    row[phase] = 1.0
    row[4] = 1.0 if phase != TAIL and in_turn(group, members, k, phase, False) else 0.0
    seconds = left_s(m, now_s) if phase == TAIL else (m.training_s if phase == TRAINING else m.rollout_s)
    slack = slack_s(m, now_s)
    row[6] = _squash(seconds / unit_s)
    row[7] = _squash((m.rollout_s if phase == TRAINING else m.training_s) / unit_s)
    row[8] = _squash(slack / unit_s)
    row[9] = _squash(slack / (min(m.slo, 100.0) * m.own_s + unit_s))
    overtaken = m.beside_overtaken if phase == TRAINING and m.staleness > 0 else m.overtaken
    row[10] = min(1.0, overtaken / n) if phase != TAIL else 0.0
    kind = TRAINING if phase == TRAINING else ROLLOUT
    number = number_of(m, kind)
    rivals_s, shortest_s, least, next_in, next_for, next_slack, behind = 0.0, np.inf, np.inf, np.inf, 0.0, 0.0, 0
    for j in range(n):
        o = members[j]
        if j == k or nodes_of(o, kind) & nodes == 0:
            continue
        other_s = o.training_s if kind == TRAINING else o.rollout_s
        behind = max(behind, (m.turn_training - o.turn_training) if kind == TRAINING else (m.turn_rollout - o.turn_rollout))
        if waits_for(o, kind):
            rivals_s += other_s
            shortest_s = min(shortest_s, other_s)
            least = min(least, slack_s(o, now_s))
            if phase != TAIL and number_of(o, kind) < number:
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
    row[19] = _squash((training_free_s - (seconds if phase != TRAINING else 0.0)) / unit_s)
    row[20] = 1.0 if nodes & group.tails != 0 else 0.0
    row[21] = _squash(behind / 1.0)
    row[22] = min(1.0, (now_s - m.since_s) / (2 * m.rollout_s)) if phase == TAIL else 0.0
    if len(row) > _ROW:
        row[_ROW] = m.staleness / (1 + m.staleness)
        row[_ROW + 1] = _samples(m)
        row[_ROW + 3] = 1.0
        if m.staleness > 0 and kind == TRAINING:
            row[_ROW + 2] = _squash(left_s(m, now_s) / unit_s)
            row[_ROW + 3] = 1.0 if m.runs == NOTHING and m.waits == NOTHING else 0.0
        elif m.staleness > 0:
            row[_ROW + 2] = _squash(beside_left_s(m, now_s) / unit_s)
            row[_ROW + 3] = 1.0 if m.beside_runs == 0 and m.beside_waits == 0 else 0.0


@compiled(arrays=False)
def _samples(m: Records) -> float:
    """Rollouts of a member that are over whose trainings are not, over 1 + its staleness; 0 on-policy."""
    return min(1.0, max(0, sampled(m)) / (1 + m.staleness)) if m.staleness > 0 else 0.0
