"""Rewards of the rollout environment: the cost of the time between two decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints


class Interval(NamedTuple):
    """Outcome of one decision per environment, up to the next decision or the end of the episode. All arrays have shape (E,).

    Attributes:
        seconds: Length of the interval.
        held_s: Seconds of the interval, times the share of the job's GPUs that the rollout held.
        plain_s: Seconds of the whole episode under the policy `plain`.
        plain_held_s: Seconds in which `plain` holds all GPUs. In the rest of `plain_s` it waits for rewards.
        invalid: 1 if the action was masked.
    """

    seconds: Floats
    held_s: Floats
    plain_s: Floats
    plain_held_s: Floats
    invalid: Ints


class Reward(Protocol):
    """A reward function of the environment."""

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        ...


@dataclass(frozen=True)
class Cost:
    """Seconds and held GPU-seconds, relative to plain rollouts. An episode's return is -1 for `plain`.

    Attributes:
        held_weight: Weight of the held GPU-seconds, from 0 (only the job's own time) to 1 (only the GPUs that others could use).
        invalid_penalty: Penalty of a masked action.

    Raises:
        InputError: A value is out of range.
    """

    held_weight: float = 0.5
    invalid_penalty: float = 0.01

    def __post_init__(self) -> None:
        if not (0 <= self.held_weight <= 1 and self.invalid_penalty >= 0):
            raise InputError("reward: held_weight must be between 0 and 1, and invalid_penalty at least 0")

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        held_s = interval.held_s * (interval.plain_s / interval.plain_held_s)  # scaled so that `plain` gets equal shares
        cost_s = (1 - self.held_weight) * interval.seconds + self.held_weight * held_s
        return np.asarray(-cost_s / interval.plain_s - self.invalid_penalty * interval.invalid)
