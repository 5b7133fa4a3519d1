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
        worked_h: Weighted work that jobs have done, in hours alone.
        scale_h: Sum of the weights of all jobs times their mean hours alone.
        invalid: 1 if the action was masked.
    """

    weighted_h: Floats
    worked_h: Floats
    scale_h: Floats
    invalid: Ints


@dataclass(frozen=True)
class Completion:
    """Time that jobs spend in the system. By Little's law the return is minus the mean completion over the mean hours alone.

    Attributes:
        lost_only: Whether only the time counts that jobs lose by waiting, sharing and pauses: a job that runs alone costs nothing.
            The return is higher by a constant of the stream, the weighted mean hours alone over the mean, and a bad choice is seen
            at once and not when the job departs, so agents learn from it far sooner.
        invalid_penalty: Penalty of a masked action.

    Raises:
        InputError: If the penalty is below 0.
    """

    lost_only: bool = False
    invalid_penalty: float = 0.01

    def __post_init__(self) -> None:
        if not self.invalid_penalty >= 0:
            raise InputError("reward: invalid_penalty must be at least 0")

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        spent_h = interval.weighted_h - interval.worked_h if self.lost_only else interval.weighted_h
        return np.asarray(-spent_h / interval.scale_h - self.invalid_penalty * interval.invalid)
