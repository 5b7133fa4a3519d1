"""The policy `rollmux`: the paper's planner, Algorithm 1 as printed."""

from __future__ import annotations

import numpy as np

from policies.api import ArrivalPolicy, Placement, State, candidates, cheapest
from policies.placement.planned import QuantileView
from policies.placement.weighted_progress import TimePrice
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job


class Algorithm1(ArrivalPolicy):
    """Placement policy that places an arriving job where its marginal cost is lowest, and never moves it (paper, Algorithm 1).

    Args:
        prune: Whether to skip saturated groups (T_load >= T_cycle), as in the paper. Without it the search is wider and still
            keeps every SLO.
        quantile: Quantile of the phase durations to plan with (see `policies.placement.planned`), 1 for the worst case.
        time_usd: Dollars that an hour of a job's progress is worth (see `policies.placement.weighted_progress`), 0 for a price of
            nodes alone. It needs `prune=False`.
        alpha: Exponent of the remaining length in the urgency of a job, for `time_usd`.

    Attributes:
        keeps_slo: Whether plans keep SLOs at the worst case. False below quantile 1, where they keep the SLOs of the quantile's
            durations only.
    """

    timeless = True

    def __init__(self, prune: bool = True, quantile: float = 1.0, time_usd: float = 0.0, alpha: float = 0.5) -> None:
        if not isinstance(prune, bool):
            raise InputError(f"prune: must be true or false, not {prune!r}")
        if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile <= 1:
            raise InputError(f"quantile: must be a number above 0 and at most 1, not {quantile!r}")
        self._time = TimePrice(time_usd, alpha)
        if time_usd and prune:
            raise InputError("time_usd: needs prune=false, which also considers saturated groups")
        self.prune = prune
        if time_usd or quantile < 1:
            self.timeless = False  # prices depend on what jobs have left, quantiles on what they have done
        self.quantile = quantile
        self.keeps_slo = quantile == 1
        self._view = None if self.keeps_slo else QuantileView(quantile)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the feasible candidate with the lowest price, or None if there is none."""
        shown = self._view(state, job.id) if self._view else state
        if not self._time.usd:
            return cheapest(shown, job.id, self.prune)
        table = candidates(shown, job.id)
        row = self._time.cheapest(shown, table, np.flatnonzero(table.feasible))
        return None if row is None else table.placement(row)
