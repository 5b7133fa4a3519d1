"""Seconds that are expected of a group's members, by what their phases took so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.dispatch.rows import ABSENT, NOTHING, TAIL, TRAINING, WAITS
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import Records


@compiled(arrays=False)
def rollout_left_s(m: Records, now_s: float) -> Any:
    """Seconds until the rollout of a member, or the tail of one, is over; 0 where it runs none."""
    if m.rolls == NOTHING:
        return 0.0
    if m.rolls == TAIL:
        return max(0.1 * m.rollout_s, 0.6 * m.rollout_s - (now_s - m.rollout_since_s))
    return max(0.02 * m.rollout_s, m.rollout_s - (now_s - m.rollout_since_s))


@compiled(arrays=False)
def training_left_s(m: Records, now_s: float) -> Any:
    """Seconds until the training of a member is over; 0 where it runs none."""
    return max(0.02 * m.training_s, m.training_s - (now_s - m.training_since_s)) if m.trains != 0 else 0.0


@compiled(arrays=False)
def until_s(m: Records, phase: int, now_s: float, training_free_s: float) -> Any:
    """Seconds until a member wants its next phase of a kind, if nobody is in its way; infinite while it waits for it."""
    rolling_s, training_s = rollout_left_s(m, now_s), training_left_s(m, now_s)
    if phase == TRAINING:
        if m.waits_training == WAITS:
            return np.inf
        if m.staleness > 0:
            if sampled(m) > m.trains:
                return training_s
            return max(training_s, rolling_s if m.rolls != NOTHING else m.rollout_s)
        if m.trains != 0:
            return training_s + m.sync_s + m.rollout_s
        return rolling_s if m.rolls != NOTHING else m.rollout_s
    if m.waits_rollout == WAITS or (m.staleness > 0 and m.turn_rollout >= ABSENT):
        return np.inf
    if m.staleness > 0:
        if sampled(m) + (m.rolls != NOTHING) <= m.staleness:
            return rolling_s
        return max(rolling_s, (training_free_s if m.waits_training == WAITS else training_s) + m.sync_s)
    if m.trains != 0:
        return training_s + m.sync_s
    if m.rolls != NOTHING:
        return rolling_s + m.training_s + m.sync_s
    return training_free_s + m.sync_s if m.waits_training == WAITS else m.sync_s


@compiled(arrays=False)
def sampled(m: Records) -> Any:
    """How many rollouts of a stale member are over whose trainings are not; 0 of one that samples no more."""
    return m.turn_rollout - m.turn_training - (m.rolls == TAIL) if m.turn_rollout < ABSENT else 0


@compiled(arrays=False)
def own_s(m: Records) -> Any:
    """Seconds that a member's finished phases take alone: those of a stale one partly beside each other."""
    seconds = m.sum_rollout_s + m.sum_training_s
    if m.staleness > 0:
        alone_s = own_period(m.rollout_s, m.training_s, m.sync_s, m.staleness)
        seconds *= alone_s / (m.rollout_s + m.training_s + m.sync_s)
    return seconds


@compiled(arrays=False)
def slack_s(m: Records, now_s: float) -> Any:
    """How far a member is ahead of its SLO."""
    return min(m.slo, 100.0) * own_s(m) - (now_s - m.joined_s)
