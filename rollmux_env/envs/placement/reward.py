"""Rewards of the placement environment: the value of the interval between two decisions.

Any callable with the signature of `Reward.__call__` works; its attributes are optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.validation_errors import describe

Reference = Literal["rollmux", "rollmux,prune=false"]


class Interval(NamedTuple):
    """Outcome of one decision per environment, up to the next decision or the end of the stream.

    All arrays have shape (E,) and are overwritten by the next step.

    Attributes:
        usd: Dollars spent, discounted from the decision on.
        solo_usd: Cost of the whole stream under Solo-D, $.
        reference_usd: Dollars of the reference policy in the same time of the same stream, or 0 without a reference.
        hours: Length of the interval, hours.
        work_h: Work of the jobs that left: iterations done times T_solo, hours.
        left: Number of jobs that left.
        broken: Number of jobs that left with a slowdown above their SLO.
        invalid: 1 if the action was masked.
        n_jobs: Number of jobs of the stream.
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
    """Protocol of a reward function of the environment."""

    @property
    def gamma_per_hour(self) -> float:
        """Discount of dollars, gamma ** (hours since the decision)."""
        ...

    @property
    def reference(self) -> Reference | None:
        """Policy to which `Interval.reference_usd` belongs, or None."""
        ...

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        ...


@dataclass(frozen=True)
class Dollars:
    """Minus the dollars, relative to the cost of the stream under Solo-D. An episode's return is minus its cost over Solo-D's.

    Attributes:
        reference: Policy whose dollars in the same time are added, or None. This removes much of the noise of arrivals. The return
            is then the saving over that policy, and the best policy stays the same.
        gamma_per_hour: Discount of dollars, gamma ** (hours since the decision), 1 for none. A learner that discounts has to weight
            what comes after the interval with `info["discount"]`.
        invalid_penalty: Penalty of a masked action, in Solo-D dollars of a mean job of the stream.
        slo_penalty: Penalty of a job that leaves with its SLO broken, in the same unit. This happens only with `shield=False`.
    """

    reference: Reference | None = None
    gamma_per_hour: float = 1.0
    invalid_penalty: float = 1.0
    slo_penalty: float = 1.0

    def __post_init__(self) -> None:
        gamma_of(self)

    def __call__(self, interval: Interval) -> Floats:
        """Return the rewards, shape (E,)."""
        penalty = self.invalid_penalty * interval.invalid + self.slo_penalty * interval.broken
        return np.asarray((interval.reference_usd - interval.usd) / interval.solo_usd - penalty / interval.n_jobs)


def gamma_of(reward: object) -> float:
    """Return the discount per hour of a reward, or 1 if it does not define one.

    Raises:
        InputError: It is not a number above 0 and at most 1.
    """
    gamma = getattr(reward, "gamma_per_hour", 1.0)
    if not isinstance(gamma, int | float | np.number) or not 0 < gamma <= 1:
        raise InputError(f"gamma_per_hour: must be above 0 and at most 1, not {describe(gamma)}")
    return float(gamma)
