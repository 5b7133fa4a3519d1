"""`rollmux`: the paper's planner, Algorithm 1 as printed."""

from __future__ import annotations

from policies.api import ArrivalPolicy, Placement, State, cheapest
from policies.placement.planned import QuantileView
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job


class Algorithm1(ArrivalPolicy):
    """Place an arriving job where its marginal cost is least, and never move it (paper, Algorithm 1).

    Args:
        prune: skip saturated groups (T_load >= T_cycle), as printed; without it the search is wider and never breaks an SLO either.
        quantile: plan on this quantile of the phase durations (see `policies.placement.planned`); 1 is the worst case.

    Attributes:
        keeps_slo: False below quantile 1: the plans then keep the SLOs of the quantile's durations, not those of the worst case.
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
        """The cheapest feasible candidate, if there is one."""
        return cheapest(self._view(state, job.id) if self._view else state, job.id, self.prune)
