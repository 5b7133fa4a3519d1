"""All names that are needed to write a placement, dispatch or rollout policy.

A network policy imports `Forecast` from `policies.network`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from policies.rollout.rounds import Rounds
from rollmux_env.cluster.candidates import CandidateTable, candidates, cheapest
from rollmux_env.cluster.events import Arrived, Departed, Event, Placement, Ticked, isolated
from rollmux_env.cluster.group import Group
from rollmux_env.cluster.plan import Move, Park, Place, Plan, Policy, Wait, after, may_move, may_park
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import JobPolicy, Round, StaticControl, Wake, deal, gather
from rollmux_env.rollout.setting import Setting
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import Migration

__all__ = [
    "ArrivalPolicy",
    "Arrived",
    "CandidateTable",
    "Departed",
    "Event",
    "Fleet",
    "Group",
    "GroupView",
    "Job",
    "JobPolicy",
    "MemberView",
    "Migration",
    "Move",
    "Park",
    "Place",
    "Placement",
    "Plan",
    "Policy",
    "Round",
    "Rounds",
    "Setting",
    "State",
    "StaticControl",
    "Ticked",
    "Wait",
    "WaitingPhase",
    "Wake",
    "after",
    "candidates",
    "cheapest",
    "deal",
    "gather",
    "isolated",
    "may_move",
    "may_park",
]


class ArrivalPolicy(ABC):
    """Base class of placement policies that never move a job. A subclass implements `place`.

    Attributes:
        keeps_slo: Whether plans keep every SLO, which is then checked. True unless a subclass sets it.
        only_places: Whether a plan for a waiting job places this job alone, as one of its `candidates`, so not co-located. The
            policy is then not asked about a job that fits nowhere. True, but False for a subclass with its own `decide`, which
            sets it to True if it holds.
        timeless: Whether a plan for a waiting job depends on no time and on no progress, only on the jobs and where they run. In
            replays the policy is then not asked again about a job without a place until something has changed. False, unless the
            class itself sets it to True: a subclass does not inherit it.
    """

    keeps_slo = True
    only_places = True
    timeless = False

    def __init_subclass__(cls) -> None:
        """Set `only_places` and `timeless` to False if the subclass does not set them and may break what they promise."""
        super().__init_subclass__()
        if "timeless" not in vars(cls):
            cls.timeless = False
        if "decide" in vars(cls) and "only_places" not in vars(cls):
            cls.only_places = False

    @abstractmethod
    def place(self, state: State, job: Job) -> Placement | None:
        """Choose the placement of a job that has just arrived.

        Args:
            state: State of the cluster at the arrival.
            job: The job that has arrived.

        Returns:
            The placement, or None to let the job wait in the queue.
        """

    def decide(self, state: State, event: Event) -> Plan:
        """Place a job that arrives, or let it wait if `place` returns None. Other events change nothing."""
        if not isinstance(event, Arrived):
            return ()
        placement = self.place(state, event.job)
        return (Wait(event.job.id),) if placement is None else (Place(event.job.id, placement),)
