"""Rewards of the dispatch environment: what the time between two decisions is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rollmux_env.kernel.tables import Floats, Ints

Reference = Literal["round-robin", "round-robin,migrate=0.8"]


class Interval(NamedTuple):
    """What came of one decision until the next, or until the episode is over: (E,) each.

    Attributes:
        seconds: how long it was. horizon_s: of the whole episode.
        work_s: T_solo seconds of the phases that ended (a training's with its sync); where these overlap, of the iterations whose
            trainings did.
        behind_s: seconds that members fell further behind their SLOs, less what they caught up.
        reference_work_s: what the reference does in as many seconds of the same group on average; 0 without one.
        invalid: 1 where the action was masked.
    """

    seconds: Floats
    horizon_s: Floats
    work_s: Floats
    behind_s: Floats
    reference_work_s: Floats
    invalid: Ints


class Reward(Protocol):
    """What the environment asks of a reward.

    Attributes:
        reference: the dispatch rule that `Interval.reference_work_s` is of, or None.
    """

    @property
    def reference(self) -> Reference | None: ...

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        ...


@dataclass(frozen=True)
class Work:
    """Work done: an episode's return is T_solo seconds over seconds, how many jobs the group runs as if each were alone.

    The group's price is fixed, so dollars per work-hour are its $/h over that number.

    Attributes:
        reference: its mean work over the same time is taken off: the return is then what was gained over it.
        slo_penalty: of a second behind an SLO, in seconds of work.
        invalid_penalty: of a masked action, in shares of the horizon.
    """

    reference: Reference | None = None
    slo_penalty: float = 1.0
    invalid_penalty: float = 0.01

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        gained_s = interval.work_s - interval.reference_work_s - self.slo_penalty * interval.behind_s
        return np.asarray(gained_s / interval.horizon_s - self.invalid_penalty * interval.invalid)
