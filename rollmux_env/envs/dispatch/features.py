"""The features of a decision: the same numbers from a `Dispatcher` and in the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import in_turn, nodes_of, round_robin, write_mask
from rollmux_env.envs.dispatch.types import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Records

Array = NDArray[np.float32]


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
def _left(m: Records, now_s: float) -> Any:
    """Expected seconds until what a member runs is over; 0 where it runs nothing."""
    if m.runs == NOTHING:
        return 0.0
    expected_s = m.training_s if m.runs == TRAINING else m.rollout_s
    if m.runs == TAIL:
        return max(0.1 * expected_s, 0.6 * expected_s - (now_s - m.since_s))
    return max(0.02 * expected_s, expected_s - (now_s - m.since_s))


@compiled(arrays=False)
def _until(m: Records, phase: int, now_s: float, training_free_s: float) -> Any:
    """Expected seconds until a member wants its next phase of a kind, if nobody is in its way; infinite while it waits for it."""
    if m.waits == phase:
        return np.inf
    left_s = _left(m, now_s)
    if phase == TRAINING:
        if m.runs == TRAINING:
            return left_s + m.sync_s + m.rollout_s
        return left_s if m.runs != NOTHING else m.rollout_s
    if m.runs == TRAINING:
        return left_s + m.sync_s
    if m.runs != NOTHING:
        return left_s + m.training_s + m.sync_s
    return training_free_s + m.sync_s if m.waits == TRAINING else m.sync_s


@compiled(arrays=False)
def _slack(m: Records, now_s: float) -> Any:
    return min(m.slo, 100.0) * m.own_s - (now_s - m.joined_s)


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
        planned_s = m.planned_rollout_s + m.planned_training_s + m.sync_s
        expected_s = m.rollout_s + m.training_s + m.sync_s
        unit_s = max(unit_s, planned_s)
        every |= nodes_of(m, ROLLOUT) & ~TRAINING_POOL
        training_load += m.training_s
        cycle_s = max(cycle_s, expected_s)
        against += min(2.0, expected_s / planned_s) / (2 * n)
        slack_s = _slack(m, now_s)
        least = min(least, slack_s)
        slacks += slack_s / n
        if m.waits == TRAINING:
            training_free_s += m.training_s
        if m.runs != NOTHING:
            left_s = _left(m, now_s)
            next_s = min(next_s, left_s)
            if m.runs == TRAINING:
                training_left_s = left_s
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
        cluster[1] += (members[k].waits == TRAINING) / n
    cluster[2] = _squash(training_left_s / unit_s)
    cluster[3] = _bits(group.busy & every) / n_nodes
    cluster[4] = _bits(group.tails & every) / n_nodes
    cluster[5] = _squash(least / unit_s)
    cluster[6] = _squash(slacks / unit_s)
    cluster[7] = _squash(next_s / unit_s) if next_s < np.inf else 1.0
    chosen = round_robin(group, members, True)
    rows[chosen, 5] = 1.0
    rows[0, 0] = 1.0
    rows[0, 6] = cluster[7]
    for k in range(n):
        if mask[k + 1] == 1:
            _write_row(group, members, k, rows[k + 1], unit_s, training_free_s, n_nodes)
    return count


@compiled(arrays=False)
def _write_row(group: Records, members: Records, k: int, row: Array, unit_s: float, training_free_s: float, n_nodes: int) -> None:
    m, n, now_s = members[k], group.n, group.now_s
    phase = m.waits if m.waits != NOTHING else TAIL
    nodes = nodes_of(m, phase)
    row[phase] = 1.0
    row[4] = 1.0 if phase != TAIL and in_turn(group, members, k, False) else 0.0
    seconds = _left(m, now_s) if phase == TAIL else (m.training_s if phase == TRAINING else m.rollout_s)
    slack_s = _slack(m, now_s)
    row[6] = _squash(seconds / unit_s)
    row[7] = _squash((m.rollout_s if phase == TRAINING else m.training_s) / unit_s)
    row[8] = _squash(slack_s / unit_s)
    row[9] = _squash(slack_s / (min(m.slo, 100.0) * m.own_s + unit_s))
    row[10] = min(1.0, m.overtaken / n) if phase != TAIL else 0.0
    kind = TRAINING if phase == TRAINING else ROLLOUT
    rivals_s, shortest_s, least, next_in, next_for, next_slack, behind = 0.0, np.inf, np.inf, np.inf, 0.0, 0.0, 0
    for j in range(n):
        o = members[j]
        if j == k or nodes_of(o, kind) & nodes == 0:
            continue
        other_s = o.training_s if kind == TRAINING else o.rollout_s
        behind = max(behind, (m.turn_training - o.turn_training) if kind == TRAINING else (m.turn_rollout - o.turn_rollout))
        if o.waits == kind:
            rivals_s += other_s
            shortest_s = min(shortest_s, other_s)
            least = min(least, _slack(o, now_s))
            if phase != TAIL and o.number < m.number:
                row[11] += 1 / n
        else:
            until_s = _until(o, kind, now_s, training_free_s)
            if until_s < next_in:
                next_in, next_for, next_slack = until_s, other_s, _slack(o, now_s)
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
