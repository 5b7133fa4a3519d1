"""The owner of the state, and the placement decisions of one instant except those about the queue.

`rollmux_env.scheduler.serving` serves the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import (
    Arrived,
    Departed,
    Event,
    JobProgress,
    MonthBegun,
    OverBudget,
    Parked,
    Progressed,
    QuotaSet,
    Resized,
    Resumed,
    Ticked,
    Withdrawn,
)
from rollmux_env.cluster.plan import Park, Plan, Policy, carry_out, is_timeless
from rollmux_env.cluster.state import State
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.scheduler.order import rules_of
from rollmux_env.scheduler.parking import next_park_s
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.scheduler.ranking import Ranker, Ranking, compute_ranking
from rollmux_env.scheduler.relocation import without
from rollmux_env.scheduler.reservation import Reservation
from rollmux_env.scheduler.ticks import INSTANT_S, Ticks


@dataclass
class JobChanges:
    """Facts about jobs since the last instant, for `Planner.leave` and `Planner.admit`.

    Attributes:
        progress: Progress by job.
        resumed: Identifiers of jobs whose pause is over.
        departed: Jobs that depart, by id, and whether each departs because its budget is exhausted.
        withdrawn: Identifiers of jobs that leave the queue.
        parked: Identifiers of jobs that have left their places to be parked.
        arriving: Jobs that arrive.
        limits: Changed quotas and months that begin, in order.
    """

    progress: dict[str, JobProgress] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    departed: dict[str, bool] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)
    arriving: list[facts.Queued] = field(default_factory=list)
    limits: list[facts.QuotaChanged | facts.MonthStarted] = field(default_factory=list)

    @property
    def may_advance_queue(self) -> bool:
        """Whether the queue may advance: nodes or a place in it may be free, or limits may have changed."""
        return bool(self.resumed or self.departed or self.withdrawn or self.parked or self.limits)


@dataclass
class Restrictions:
    """Limits on the places of jobs beyond those of the state.

    Attributes:
        confined: Names of the nodes that a job may use, by id; jobs that may use all are not in it.
        alone: Ids of jobs with which no other job may share a group.
        hidden: Ids of groups that the policy does not see: those with drained nodes, and those of `alone` jobs.
    """

    confined: dict[str, frozenset[str]] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    hidden: Collection[int] = ()


class Planner:
    """The owner of the state, including the queue. It checks and applies the policy's answers, and asks about all but waiting jobs.

    Args:
        state: State when the planner takes over.
        policy: Placement policy.
        restrictions: Restrictions of the jobs' places, which others write.
        nodes: Nodes by name, or None.
        parks_later: Whether a job that is parked leaves its place only at the end of its iteration.

    Attributes:
        state: State of the cluster.
        policy: Placement policy.
        rules: Rules by which the queue is served, or None for one first-come queue.
        ranker: Ranker of the queue.
        restrictions: Restrictions of the jobs' places.
        nodes: Nodes by name, or None.
        park_s: Next time at which a job may be parked because it has had its place for long enough, seconds.
        reserved: Decisions that wait for jobs that are parked, or None. Meanwhile the policy is not asked.
        ticks: Times at which the policy is woken.
        events: Applied events that have not been taken yet.
        declined: Waiting jobs for which a timeless policy has no place, each with the running job that would be parked for it, or
            with an empty text. It is emptied when something changes.
        arriving_with_nodes: Names of the nodes of each job that arrives now with running processes, by id.
        queue_may_advance: Whether nodes may have become free since the queue was last served.
    """

    def __init__(
        self, state: State, policy: Policy, restrictions: Restrictions, nodes: NodePool | None, parks_later: bool = False
    ) -> None:
        self.state = state
        self.policy = policy
        self.rules = rules_of(policy)
        self.ranker = Ranker(self.rules)
        self.restrictions = restrictions
        self.nodes = nodes
        self.park_s = inf
        self.reserved: Reservation | None = None
        self.ticks = Ticks(policy)
        self.events: list[Event] = []
        self.declined: set[tuple[str, str]] = set()
        self.arriving_with_nodes: dict[str, frozenset[str]] = {}
        self.queue_may_advance = False
        self._n_reported = 0  # number of `events` that `unreported_events` has already returned
        self._parks_later = parks_later
        # A service also changes which nodes and groups the policy sees.
        self._keeps_answers = nodes is None and is_timeless(policy) and not state.switches and state.cluster.network is None
        self._parks: list[str] = []  # jobs that have to leave their places, and have not been told
        self._departed: Departed | None = None  # last departure about which the policy has not been asked
        self._ticked: Ticked | None = None  # last tick about which the policy has not been asked

    @property
    def must_ask_policy(self) -> bool:
        """Whether the policy still has to be asked about something."""
        return self.queue_may_advance or self._departed is not None or self._ticked is not None

    @property
    def next_s(self) -> float:
        """Time of the next instant at which the policy is asked although nothing happens in seconds, or infinity."""
        return min(self.ticks.next_s, self.park_s)

    @property
    def ranking(self) -> Ranking:
        """Waiting jobs in the order in which they are served, with their keys."""
        return compute_ranking(self.state, self.rules)

    @property
    def planned(self) -> State:
        """State with the decisions that are reserved."""
        return self.state if self.reserved is None else self.reserved.state

    @property
    def parking(self) -> Mapping[str, str]:
        """Jobs that are to leave their places, each with the job for which it is parked or an empty text."""
        return {} if self.reserved is None else self.reserved.parking

    @property
    def shown(self) -> State:
        """State that the policy is shown."""
        return self.visible(self.planned)

    def visible(self, state: State) -> State:
        """Return a state without the groups that the policy does not see."""
        return without(state, self.restrictions.hidden) if self.restrictions.hidden else state

    def wake(self) -> None:
        """Make the next decision serve the queue, because a waiting job may get a placement."""
        self.queue_may_advance = True

    def note(self, event: Event) -> None:
        """Apply an event and record it."""
        frees_nothing = isinstance(event, Resumed) and not self.state.pauses.holds_nodes(event.job_id)  # the job had been parked
        apply(self.state, event)
        self._follow(event, changes_places=not frees_nothing)
        self.events.append(event)

    def _follow(self, event: Event, changes_places: bool = True) -> None:
        """Forget what an event has changed: keys of jobs, and if it changes who is where, the answers about waiting jobs."""
        self.ranker.follow(event)
        if changes_places and not isinstance(event, Arrived | Progressed | Ticked):
            self.declined.clear()

    def take_events(self) -> list[Event]:
        """Return and clear the events that were applied since the last call."""
        events, self.events = self.events, []
        self._n_reported = 0
        return events

    def unreported_events(self) -> list[Event]:
        """Return the events that were applied since the last call of this method or of `take_events`."""
        unreported = self.events[self._n_reported :]
        self._n_reported = len(self.events)
        return unreported

    def leave(self, now_s: float, changes: JobChanges) -> None:
        """Apply progress, ends of pauses, departures, withdrawals and changed limits: the first part of an instant.

        Args:
            now_s: Time of the instant, in seconds.
            changes: Facts of jobs since the last instant.
        """
        self.state.now_s = now_s
        if changes.progress:
            self.note(Progressed(now_s, tuple(changes.progress.values())))
        for job_id in changes.resumed:
            self.note(Resumed(now_s, job_id))
        for job_id in sorted(changes.departed, key=self.state.row) if len(changes.departed) > 1 else changes.departed:
            self._departed = OverBudget(now_s, job_id) if changes.departed[job_id] else Departed(now_s, job_id)
            self.note(self._departed)
        for job_id in changes.withdrawn:
            self.note(Withdrawn(now_s, job_id))
        for job_id in changes.parked:
            self.note(Parked(now_s, job_id, self.parking.get(job_id, "")))
        for limit in changes.limits:
            self.note((QuotaSet if isinstance(limit, facts.QuotaChanged) else MonthBegun)(now_s, *limit))
        if changes.may_advance_queue:
            self.queue_may_advance = True
        if self.reserved is not None:
            self.reserved.release({*changes.departed, *changes.parked})

    def redeem(self, may_place: bool) -> None:
        """Give the reserved places when all jobs that were to be parked have left theirs.

        Where they are no longer possible, the queue is served again anyway. So it is for a job that may use only some nodes, since
        these may not be the ones that have become free.

        Args:
            may_place: Whether jobs may get places now, because as many nodes are free as the state says.
        """
        reserved, limits = self.reserved, self.restrictions
        if reserved is None or reserved.parking:
            return
        self.reserved = None
        self.declined.clear()  # the reserved places are free again
        if may_place and reserved.avoids(limits.confined, limits.hidden):
            for event in reserved.redeem(self.state, self.policy):
                self.note(event)

    def resize(self, now_s: float, rollout_nodes: int, training_nodes: int) -> None:
        """Set the number of nodes of both pools."""
        self.note(Resized(now_s, rollout_nodes, training_nodes))
        self.queue_may_advance = True

    def answer(self, now_s: float, asks: bool) -> None:
        """Ask the policy about departures and ticks that have not been handled yet: the second part of an instant.

        Args:
            now_s: Time of the instant, in seconds.
            asks: Whether the policy may be asked now; otherwise it is asked later.
        """
        asks = asks and self.reserved is None
        if asks and self._departed is not None:
            departed, self._departed = self._departed, None
            self.move(ask(self.policy, self.shown, departed))
        if self.ticks.next_s <= now_s + INSTANT_S and self.state.tables.order.size:
            self._ticked, self.queue_may_advance = Ticked(now_s), True
            self.note(self._ticked)
        if asks and self.reserved is None and self._ticked is not None:
            ticked, self._ticked = self._ticked, None
            self.move(ask(self.policy, self.shown, ticked))

    def move(self, plan: Plan) -> bool:
        """Check and apply a plan that only moves and parks jobs, unless quotas forbid it, and return whether it was applied.

        Raises:
            PlanError: If the plan breaks an invariant.
        """
        if self.state.cluster.quotas and Quotas(self.state).broken(plan, self.policy):
            return False
        self.carry_out(plan)
        return True

    def carry_out(self, plan: Plan, passed: int = 0, queue: Sequence[str] | None = None) -> None:
        """Check and apply a plan, or reserve it until the jobs that it parks have left their places.

        Args:
            plan: Plan to carry out.
            passed: Number of jobs at the head of the queue that have been passed over.
            queue: Waiting jobs in order, or None for that of the state.

        Raises:
            PlanError: If the plan breaks an invariant.
        """
        parked = {action.job_id: action.for_job for action in plan if isinstance(action, Park)}
        if parked and self._parks_later and self.reserved is None:
            self.reserved = Reservation(self.state)
        events = self.events if self.reserved is None else self.reserved.events
        for event in carry_out(self.planned, plan, self.policy.keeps_slo, passed, queue):
            self._follow(event)
            events.append(event)
        if self.reserved is not None:
            self.reserved.parking.update(parked)
            self._parks += parked

    def decline(self, job_id: str, parked: str = "") -> None:
        """Remember that the policy has no place for a waiting job, if its answer stays the same.

        Args:
            job_id: Identifier of the waiting job.
            parked: Identifier of the running job that would be parked for it, or an empty text.
        """
        if self._keeps_answers:
            self.declined.add((job_id, parked))

    def take_parks(self) -> list[str]:
        """Return the jobs that have to leave their places since the last call."""
        parks, self._parks = self._parks, []
        return parks

    def own_nodes(self, job_id: str) -> frozenset[str] | None:
        """Return the names of the nodes that a job must get that was just admitted, or None for any nodes."""
        if job_id in self.restrictions.confined:
            return self.restrictions.confined[job_id]
        enters_warm = job_id in self.arriving_with_nodes and self.state.tables.job_records["entered_warm"][self.state.row(job_id)]
        return self.arriving_with_nodes[job_id] if enters_warm else None

    def find_next_s(self, now_s: float) -> None:
        """Find the next tick, and the next time at which a job may be parked because it has had its place for long enough."""
        state = self.state
        parks = self.rules is not None and self.rules.park and state.waiting
        self.park_s = next_park_s(state, state.now_s + INSTANT_S) if parks else inf
        if self.ticks.every_s is not None:
            self.ticks.after(now_s, state.first_arrival_s, state.tables.order.size > 0)
