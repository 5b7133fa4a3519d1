"""The policy `rollmux`: the paper's planner, Algorithm 1 as printed."""

from __future__ import annotations

from policies.api import ArrivalPolicy, Placement, State, cheapest
from policies.placement.planned import QuantileView
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job


class Algorithm1(ArrivalPolicy):
    """Placement policy that places an arriving job where its marginal cost is lowest, and never moves it (paper, Algorithm 1).

    Args:
        prune: Whether to skip saturated groups (T_load >= T_cycle), as in the paper. Without it the search is wider and still
            keeps every SLO.
        quantile: Quantile of the phase durations to plan with (see `policies.placement.planned`), 1 for the worst case.

    Attributes:
        keeps_slo: Whether plans keep SLOs at the worst case. False below quantile 1, where they keep the SLOs of the quantile's
            durations only.
    """

    def __init__(self, prune: bool = True, quantile: float = 1.0) -> None:
        if not isinstance(prune, bool):
            raise InputError(f"prune: must be true or false, not {prune!r}")
        if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile <= 1:
            raise InputError(f"quantile: must be a number above 0 and at most 1, not {quantile!r}")
        self.prune = prune
        self.quantile = quantile
        self.keeps_slo = quantile == 1
        self._view = None if self.keeps_slo else QuantileView(quantile)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the feasible candidate with the lowest marginal cost, or None if there is none."""
        return cheapest(self._view(state, job.id) if self._view else state, job.id, self.prune)
