"""Seconds that are expected of a group's members, by what their phases took so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.dispatch.types import ABSENT, NOTHING, TAIL, TRAINING
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Records


@compiled(arrays=False)
def left_s(m: Records, now_s: float) -> Any:
    """Seconds until what a member runs is over, its training beside a rollout left out; 0 where it runs nothing."""
    if m.runs == NOTHING:
        return 0.0
    expected_s = m.training_s if m.runs == TRAINING else m.rollout_s
    if m.runs == TAIL:
        return max(0.1 * expected_s, 0.6 * expected_s - (now_s - m.since_s))
    return max(0.02 * expected_s, expected_s - (now_s - m.since_s))


@compiled(arrays=False)
def beside_left_s(m: Records, now_s: float) -> Any:
    """Seconds until the training of a stale member is over; 0 where it runs none."""
    return max(0.02 * m.training_s, m.training_s - (now_s - m.beside_since_s)) if m.beside_runs != 0 else 0.0


@compiled(arrays=False)
def until_s(m: Records, phase: int, now_s: float, training_free_s: float) -> Any:
    """Seconds until a member wants its next phase of a kind, if nobody is in its way; infinite while it waits for it."""
    if m.staleness > 0:
        return _stale_until_s(m, phase, now_s, training_free_s)
    if m.waits == phase:
        return np.inf
    rest_s = left_s(m, now_s)
    if phase == TRAINING:
        if m.runs == TRAINING:
            return rest_s + m.sync_s + m.rollout_s
        return rest_s if m.runs != NOTHING else m.rollout_s
    if m.runs == TRAINING:
        return rest_s + m.sync_s
    if m.runs != NOTHING:
        return rest_s + m.training_s + m.sync_s
    return training_free_s + m.sync_s if m.waits == TRAINING else m.sync_s


@compiled(arrays=False)
def _stale_until_s(m: Records, phase: int, now_s: float, training_free_s: float) -> Any:
    """The same of a stale member: a training needs a sample, and a rollout weights that are fresh enough."""
    rollout_left_s, training_left_s = left_s(m, now_s), beside_left_s(m, now_s)
    if phase == TRAINING:
        if m.beside_waits != 0:
            return np.inf
        if sampled(m) > m.beside_runs:
            return training_left_s
        return max(training_left_s, rollout_left_s if m.runs != NOTHING else m.rollout_s)
    if m.waits != NOTHING or m.turn_rollout >= ABSENT:
        return np.inf
    if sampled(m) + (m.runs != NOTHING) <= m.staleness:
        return rollout_left_s
    fresh_s = training_free_s if m.beside_waits != 0 else training_left_s
    return max(rollout_left_s, fresh_s + m.sync_s)


@compiled(arrays=False)
def sampled(m: Records) -> Any:
    """How many rollouts of a stale member are over whose trainings are not; 0 of one that samples no more."""
    return m.turn_rollout - m.turn_training - (m.runs == TAIL) if m.turn_rollout < ABSENT else 0


@compiled(arrays=False)
def slack_s(m: Records, now_s: float) -> Any:
    """How far a member is ahead of its SLO."""
    return min(m.slo, 100.0) * m.own_s - (now_s - m.joined_s)
