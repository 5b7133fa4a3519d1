"""Rewards of the rollout environment: what the time between two decisions costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints


class Interval(NamedTuple):
    """What came of one decision until the next, or until the episode is over: (E,) each.

    Attributes:
        seconds: how long it was. held_s: its seconds, times the share of the job's GPUs that the rollout held.
        plain_s: seconds of the whole episode under the policy `plain`. plain_held_s: those in which it holds all GPUs; in others it
            waits for rewards.
        invalid: 1 where the action was masked.
    """

    seconds: Floats
    held_s: Floats
    plain_s: Floats
    plain_held_s: Floats
    invalid: Ints


class Reward(Protocol):
    """What the environment asks of a reward."""

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        ...


@dataclass(frozen=True)
class Cost:
    """Seconds and held GPU-seconds, over those of plain rollouts: an episode's return is -1 under `plain`.

    Attributes:
        held_weight: weight of the held GPU-seconds, from 0 (the job's own time alone) to 1 (only what others could use).
        invalid_penalty: of a masked action.

    Raises:
        InputError: one of them is out of range.
    """

    held_weight: float = 0.5
    invalid_penalty: float = 0.01

    def __post_init__(self) -> None:
        if not (0 <= self.held_weight <= 1 and self.invalid_penalty >= 0):
            raise InputError("reward: held_weight must be between 0 and 1, and invalid_penalty at least 0")

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        held_s = interval.held_s * (interval.plain_s / interval.plain_held_s)  # as if these were as many
        cost_s = (1 - self.held_weight) * interval.seconds + self.held_weight * held_s
        return np.asarray(-cost_s / interval.plain_s - self.invalid_penalty * interval.invalid)
