"""Rewards: what an interval between two decisions is worth. An environment is given one; any callable like it will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.validation_errors import describe

Reference = Literal["rollmux", "rollmux,prune=false"]


class Interval(NamedTuple):
    """What came of one decision until the next, or until the stream is over: (E,) each, which the next step overwrites.

    Attributes:
        usd: dollars, discounted from the decision on. solo_usd: what the whole stream costs under Solo-D, $.
        reference_usd: the reference policy's dollars over the same time of the same stream; 0 without one.
        hours: how long it was. work_h: iterations done times T_solo of the jobs that left, hours.
        left: jobs that left. broken: those of them whose slowdown was above their SLO.
        invalid: 1 where the action was masked. n_jobs: jobs of the stream.
    """

    usd: Floats
    solo_usd: Floats
    reference_usd: Floats
    hours: Floats
    work_h: Floats
    left: Ints
    broken: Ints
    invalid: Ints
    n_jobs: Ints


class Reward(Protocol):
    """What an environment asks of a reward.

    Attributes:
        gamma_per_hour: dollars count gamma ** (hours since the decision) times.
        reference: the policy that `Interval.reference_usd` is of, or None.
    """

    @property
    def gamma_per_hour(self) -> float: ...
    @property
    def reference(self) -> Reference | None: ...

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        ...


@dataclass(frozen=True)
class Dollars:
    """Minus the dollars, as a share of what the stream costs under Solo-D: an episode's return is minus its cost over Solo-D's.

    Attributes:
        reference: the reference policy's dollars over the same time are added, which takes out much of the noise of arrivals:
            the return is then the saving over that policy. What is best stays best.
        gamma_per_hour: dollars count gamma ** (hours since the decision) times; 1 does not discount. A learner that discounts
            has to weigh what comes after the interval by `info["discount"]`.
        invalid_penalty: of a masked action, in Solo-D dollars of a mean job of the stream.
        slo_penalty: of a job that leaves with its SLO broken, likewise. Only without the shield can there be one.
    """

    reference: Reference | None = None
    gamma_per_hour: float = 1.0
    invalid_penalty: float = 1.0
    slo_penalty: float = 1.0

    def __post_init__(self) -> None:
        gamma_of(self)

    def __call__(self, interval: Interval) -> Floats:
        """(E,) rewards."""
        penalty = self.invalid_penalty * interval.invalid + self.slo_penalty * interval.broken
        return np.asarray((interval.reference_usd - interval.usd) / interval.solo_usd - penalty / interval.n_jobs)


def gamma_of(reward: object) -> float:
    """Return the discount by the hour of a reward; 1 where it says none.

    Raises:
        InputError: it is no number above 0 and at most 1.
    """
    gamma = getattr(reward, "gamma_per_hour", 1.0)
    if not isinstance(gamma, int | float | np.number) or not 0 < gamma <= 1:
        raise InputError(f"gamma_per_hour: must be above 0 and at most 1, not {describe(gamma)}")
    return float(gamma)
