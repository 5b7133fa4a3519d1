"""`rollmux`: the paper's planner, Algorithm 1 as printed."""

from __future__ import annotations

from policies.placement.quantile import QuantileView
from rollmux_env.cluster.candidates import cheapest
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError


class Algorithm1:
    """Place an arriving job where its marginal cost is least, and never move it (paper, Algorithm 1).

    Args:
        prune: skip saturated groups (T_load >= T_cycle), as printed; without it the search is wider and never breaks an SLO either.
        quantile: plan on this quantile of the phase durations (see `policies.placement.quantile`); 1 is the worst case.

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

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with the cheapest feasible candidate, or let the job wait."""
        if not isinstance(event, Arrived):
            return ()
        job_id = event.job.id
        placement = cheapest(self._view(state, job_id) if self._view else state, job_id, self.prune)
        return (Wait(job_id) if placement is None else Place(job_id, placement),)
