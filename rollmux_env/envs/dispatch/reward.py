"""Rewards of the dispatch environment: the value of the time between two decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rollmux_env.kernel.tables import Floats, Ints

Reference = Literal["round-robin", "round-robin,migrate=0.8"]


class Interval(NamedTuple):
    """Outcome of one decision per environment, up to the next decision or the end of the episode. All arrays have shape (E,).

    Attributes:
        seconds: Length of the interval.
        horizon_s: Length of the whole episode, seconds.
        work_s: T_solo seconds of the phases that ended, a training's with its sync. For stale members, those of the iterations
            whose trainings ended.
        behind_s: Seconds by which members fell further behind their SLOs, minus those by which they caught up.
        reference_work_s: Mean work of the reference in the same time of the same group, or 0 without a reference.
        invalid: 1 if the action was masked.
    """

    seconds: Floats
    horizon_s: Floats
    work_s: Floats
    behind_s: Floats
    reference_work_s: Floats
    invalid: Ints


class Reward(Protocol):
    """A reward function of the environment."""

    @property
    def reference(self) -> Reference | None:
        """Dispatch rule to which `Interval.reference_work_s` belongs, or None."""
        ...

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        ...


@dataclass(frozen=True)
class Work:
    """Work done. The return is T_solo seconds per second: the number of jobs that the group runs as if each were alone.

    The group's price is fixed, so dollars per work-hour are its $/h divided by that number.

    Attributes:
        reference: Dispatch rule whose mean work in the same time is subtracted, or None. The return is then the gain over it.
        slo_penalty: Penalty of a second behind an SLO, in seconds of work.
        invalid_penalty: Penalty of a masked action, as a share of the horizon.
    """

    reference: Reference | None = None
    slo_penalty: float = 1.0
    invalid_penalty: float = 0.01

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        gained_s = interval.work_s - interval.reference_work_s - self.slo_penalty * interval.behind_s
        return np.asarray(gained_s / interval.horizon_s - self.invalid_penalty * interval.invalid)
