"""`rollmux`: the paper's planner, Algorithm 1 as printed."""

from __future__ import annotations

from rollmux_env.cluster.candidates import cheapest
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State


class Algorithm1:
    """Place an arriving job where its marginal cost is least, and never move it (paper, Algorithm 1).

    Args:
        prune: skip saturated groups (T_load >= T_cycle), as printed; without it the search is wider and never breaks an SLO either.
    """

    keeps_slo = True

    def __init__(self, prune: bool = True) -> None:
        self.prune = prune

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with the cheapest feasible candidate, or let the job wait."""
        if not isinstance(event, Arrived):
            return ()
        placement = cheapest(state, event.job.id, self.prune)
        return (Wait(event.job.id) if placement is None else Place(event.job.id, placement),)
