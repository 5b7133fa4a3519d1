"""Rewards of the queue environment: the jobs in the system over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints


class Interval(NamedTuple):
    """Outcome of one decision per environment, up to the next decision or the end of the episode. All arrays have shape (E,).

    Attributes:
        weighted_h: Weighted number of jobs in the system times hours.
        scale_h: Sum of the weights of all jobs times their mean hours alone.
        invalid: 1 if the action was masked.
    """

    weighted_h: Floats
    scale_h: Floats
    invalid: Ints


@dataclass(frozen=True)
class Completion:
    """Time that jobs spend in the system. By Little's law the return is minus the mean completion over the mean hours alone.

    Attributes:
        invalid_penalty: Penalty of a masked action.

    Raises:
        InputError: If the penalty is below 0.
    """

    invalid_penalty: float = 0.01

    def __post_init__(self) -> None:
        if not self.invalid_penalty >= 0:
            raise InputError("reward: invalid_penalty must be at least 0")

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        return np.asarray(-interval.weighted_h / interval.scale_h - self.invalid_penalty * interval.invalid)
