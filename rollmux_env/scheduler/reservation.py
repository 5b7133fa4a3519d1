"""Decisions that wait until the jobs that they park have left their places."""

from __future__ import annotations

from collections.abc import Collection

from rollmux_env.cluster.events import Admitted, Event, Moved
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.scheduler.quotas import Quotas, exceeded


class Reservation:
    """Decisions that wait until jobs have left their places to be parked.

    Args:
        state: State at the first of the decisions, left unchanged.

    Attributes:
        state: State as it will be.
        events: Events that lead there.
        parking: Jobs that have not left yet, each with the job for which it is parked or an empty text.
    """

    def __init__(self, state: State) -> None:
        self.state = state.copy()
        self.events: list[Event] = []
        self.parking: dict[str, str] = {}

    def release(self, gone: Collection[str]) -> None:
        """Note that jobs have left their places."""
        for job_id in gone:
            self.parking.pop(job_id, None)

    def avoids(self, job_ids: Collection[str], groups: Collection[int]) -> bool:
        """Return whether the decisions place none of some jobs, and no job in some groups."""
        placed = [event for event in self.events if isinstance(event, Admitted | Moved)]
        return not any(event.job_id in job_ids or event.placement.group in groups for event in placed)

    def redeem(self, state: State, policy: Policy) -> list[Event]:
        """Return the events that give the reserved places, or none if something else has made the decisions impossible.

        Args:
            state: State after all jobs have left, left unchanged.
            policy: Policy that made the decisions.
        """
        twin, events = state.copy(), []
        users = set()
        quotas = Quotas(state)
        if any(isinstance(event, Admitted) and quotas.bars_for_month(state.job(event.job_id)) for event in self.events):
            return []
        try:
            for event in self.events:
                if isinstance(event, Admitted | Moved):
                    kind = Place if isinstance(event, Admitted) else Move
                    plan: Plan = (kind(event.job_id, event.placement),)
                    events += carry_out(twin, plan, policy.keeps_slo, len(twin.waiting))
                    users.add(state.job(event.job_id).user)
        except PlanError:
            return []
        # A departure may have raised the share of a user in a group: quotas are checked as at the decision.
        return [] if exceeded(state, twin, users) else events
