"""The placement decisions of one instant: the policy is asked, and its answers are checked and applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from time import perf_counter
from typing import NamedTuple

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    Event,
    JobProgress,
    Moved,
    OverBudget,
    Parked,
    Progressed,
    Requeued,
    Resized,
    Resumed,
    Ticked,
    Warm,
    Withdrawn,
)
from rollmux_env.cluster.link import waits_for_link
from rollmux_env.cluster.plan import Move, Park, Place, Plan, Policy, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.asking import ask, ask_for_moves
from rollmux_env.scheduler.confined import confined_plan
from rollmux_env.scheduler.nodes import POOLS, NodePool
from rollmux_env.scheduler.order import may_be_passed, ranked, rows_of, rules_of, sequence
from rollmux_env.scheduler.parking import next_park_s, parkable_for, without_each
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.scheduler.reasons import alone_because
from rollmux_env.scheduler.relocation import without
from rollmux_env.scheduler.room import may_fit

INSTANT_S = 1e-6  # times this close are one instant


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
    """

    progress: dict[str, JobProgress] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    departed: dict[str, bool] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)
    arriving: list[facts.Queued] = field(default_factory=list)


class Ticks:
    """The times at which a policy is woken: whole multiples of its `wakes_every_s` after the first arrival, while jobs run.

    Args:
        policy: Placement policy.

    Attributes:
        every_s: The policy's `wakes_every_s`, or None.
        next_s: Time of the next tick in seconds; infinite if no job runs, or the policy does not ask to be woken.

    Raises:
        InputError: If `wakes_every_s` is not a number of seconds above `INSTANT_S`.
    """

    def __init__(self, policy: Policy) -> None:
        every_s = getattr(policy, "wakes_every_s", None)
        if every_s is not None and not (isinstance(every_s, int | float) and INSTANT_S < every_s < inf):
            raise InputError(f"wakes_every_s: must be a number of seconds above {INSTANT_S:g}, not {every_s}")
        self.every_s: float | None = every_s
        self.next_s = inf

    def after(self, now_s: float, first_s: float, running: bool) -> None:
        """Find the first tick after an instant.

        Args:
            now_s: Time of the instant, in seconds.
            first_s: Time of the first arrival, in seconds.
            running: Whether jobs run.
        """
        self.next_s = inf
        if running and self.every_s is not None:
            passed = floor((now_s + INSTANT_S - first_s) / self.every_s)
            self.next_s = first_s + (passed + 1) * self.every_s


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


class Reservation(NamedTuple):
    """Decisions that wait until jobs have left their places to be parked.

    Attributes:
        state: State as it will be.
        events: Events that lead there.
        parking: Jobs that have not left yet, each with the job for which it is parked or an empty text.
    """

    state: State
    events: list[Event]
    parking: dict[str, str]


class Planner:
    """The owner of the state, including the queue, and the caller of the policy.

    Args:
        state: State when the planner takes over.
        policy: Policy that is asked at arrivals, departures and ticks.
        restrictions: Restrictions of the jobs' places, which others write.
        nodes: Nodes by name, or None.
        parks_later: Whether a job that is parked leaves its place only at the end of its iteration.

    Attributes:
        state: State of the cluster.
        policy: Placement policy.
        rules: Rules by which the queue is served, or None for one first-come queue.
        park_s: Next time at which a job may be parked because it has had its place for long enough, seconds.
        reserved: Decisions that wait for jobs that are parked, or None. Meanwhile the policy is not asked.
        ticks: Times at which the policy is woken.
        events: Applied events that have not been taken yet.
        decision_s: Seconds that each call of the policy for a waiting job has taken.
        why: Reasons why jobs that got a new group joined no other one, by id; None if reasons are not recorded.
        settle: Function that assigns nodes to groups as the state says; the given job gets the nodes of `own_nodes`.
    """

    def __init__(
        self, state: State, policy: Policy, restrictions: Restrictions, nodes: NodePool | None, parks_later: bool = False
    ) -> None:
        self.state = state
        self.policy = policy
        self.rules = rules_of(policy)
        self.park_s = inf
        self.reserved: Reservation | None = None
        self._rearranges = hasattr(policy, "rearrange")
        self._parks_later = parks_later
        self._parks: list[str] = []  # jobs that have to leave their places, and have not been told
        self.ticks = Ticks(policy)
        self.events: list[Event] = []
        self._n_reported = 0  # number of `events` that `unreported_events` has already returned
        self.decision_s: list[float] = []
        self.why: dict[str, str] | None = None
        self._restrictions = restrictions
        self._nodes = nodes
        self._alive: dict[str, frozenset[str]] = {}  # names of its nodes, for each job that arrives now with running processes
        self.settle: Callable[[str], None] = lambda _: None
        self._departed: Departed | None = None  # last departure about which the policy has not been asked
        self._ticked: Ticked | None = None  # last tick about which the policy has not been asked
        self._queue_may_advance = False  # whether nodes may have become free since the queue was last served
        self._head: str | None = None  # first job that waits for nodes, not for a quota
        self._head_is_known = not state.waiting  # whether `_head` is up to date

    @property
    def must_ask_policy(self) -> bool:
        """Whether the policy still has to be asked about something."""
        return self._queue_may_advance or self._departed is not None or self._ticked is not None

    @property
    def next_s(self) -> float:
        """Time of the next instant at which the policy is asked although nothing happens in seconds, or infinity."""
        return min(self.ticks.next_s, self.park_s)

    @property
    def queue(self) -> list[str]:
        """Waiting jobs in the order in which they are served."""
        return sequence(self.state, self.rules)

    @property
    def shown(self) -> State:
        """State that the policy is shown."""
        return self._shown(self.state if self.reserved is None else self.reserved.state)

    def _shown(self, state: State) -> State:
        return without(state, self._restrictions.hidden) if self._restrictions.hidden else state

    def wake(self) -> None:
        """Make the next decision serve the queue, because a waiting job may get a placement."""
        self._queue_may_advance = True

    def note(self, event: Event) -> None:
        """Apply an event and record it."""
        apply(self.state, event)
        self.events.append(event)

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
        """Apply progress, ends of pauses, departures and withdrawals: the first part of an instant.

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
            self.note(Parked(now_s, job_id, "" if self.reserved is None else self.reserved.parking[job_id]))
        if changes.resumed or changes.departed or changes.withdrawn or changes.parked:
            self._queue_may_advance = True
        if self.reserved is not None:
            self._redeem(self.reserved, {*changes.departed, *changes.parked})

    def resize(self, now_s: float, rollout_nodes: int, training_nodes: int) -> None:
        """Set the number of nodes of both pools."""
        self.note(Resized(now_s, rollout_nodes, training_nodes))
        self._queue_may_advance = True

    def answer(self, now_s: float, asks: bool) -> None:
        """Ask the policy about departures and ticks that have not been handled yet: the second part of an instant.

        Args:
            now_s: Time of the instant, in seconds.
            asks: Whether the policy may be asked now; otherwise it is asked later.
        """
        state, policy = self.state, self.policy
        asks = asks and self.reserved is None
        if asks and self._departed is not None:
            departed, self._departed = self._departed, None
            self.move(ask(policy, self.shown, departed))
        if self.ticks.next_s <= now_s + INSTANT_S and state.tables.order.size:
            self._ticked, self._queue_may_advance = Ticked(now_s), True
            self.note(self._ticked)
        if asks and self.reserved is None and self._ticked is not None:
            ticked, self._ticked = self._ticked, None
            self.move(ask(policy, self.shown, ticked))

    def admit(self, now_s: float, arriving: Iterable[facts.Queued], asks: bool) -> None:
        """Serve the queue from its head, then handle arrivals: the last part of an instant. With rules, arrivals come first.

        Args:
            now_s: Time of the instant, in seconds.
            arriving: Jobs that arrive.
            asks: Whether the policy may be asked now; otherwise it is asked later.
        """
        state = self.state
        asks = asks and self.reserved is None
        if asks and self._queue_may_advance and self.rules is None:
            self._serve(now_s)
        for job, again, alive in arriving:
            self.note((Requeued if again else Arrived)(now_s, job))
            if alive:
                self._alive[job.id] = alive
            if not asks:
                self._queue_may_advance = True
            elif self.rules is None and (position := self._first_to_ask(job.id)) is not None:
                self._serve(now_s, position)
        if asks and self.rules is not None:
            self._serve(now_s)
        self._alive.clear()
        if self._rearranges and asks and self.reserved is None:
            self.move(ask_for_moves(self.policy, self.shown))
        self.find_park_s()
        if self.ticks.every_s is not None:
            first_s = state.job(state.tables.job_id(0)).arrival_s if state.arrived else inf
            self.ticks.after(now_s, first_s, state.tables.order.size > 0)

    def move(self, plan: Plan) -> bool:
        """Check and apply a plan that only moves and parks jobs, unless quotas forbid it, and return whether it was applied.

        Raises:
            PlanError: If the plan breaks an invariant.
        """
        if self.state.cluster.quotas and Quotas(self.state).broken(plan, self.policy):
            return False
        self._carry_out(plan)
        return True

    def _carry_out(self, plan: Plan, passed: int = 0, queue: Sequence[str] | None = None) -> None:
        """Check and apply a plan, or reserve it until the jobs that it parks have left their places.

        Args:
            plan: Plan to carry out.
            passed: Number of jobs at the head of the queue that have been passed over.
            queue: Waiting jobs in order, or None for that of the state.

        Raises:
            PlanError: If the plan breaks an invariant.
        """
        parked = {action.job_id: action.for_job for action in plan if isinstance(action, Park)}
        if parked and self._nodes is not None:
            raise PlanError(f"P9: job {min(parked)} cannot be parked: parks are for replays so far")
        if parked and self._parks_later and self.reserved is None:
            self.reserved = Reservation(self.state.copy(), [], {})
        state, events = (self.state, self.events) if self.reserved is None else self.reserved[:2]
        events += carry_out(state, plan, self.policy.keeps_slo, passed, queue)
        if self.reserved is not None:
            self.reserved.parking.update(parked)
            self._parks += parked

    def _redeem(self, reserved: Reservation, gone: Collection[str]) -> None:
        """Give the reserved places when all jobs that were to be parked have left theirs.

        If something else has happened that makes the decisions impossible, they are dropped: the queue is served again anyway.
        """
        for job_id in gone:
            reserved.parking.pop(job_id, None)
        if reserved.parking:
            return
        self.reserved = None
        twin, events = self.state.copy(), []
        try:
            for event in reserved.events:
                if isinstance(event, Admitted | Moved):
                    kind = Place if isinstance(event, Admitted) else Move
                    plan: Plan = (kind(event.job_id, event.placement),)
                    events += carry_out(twin, plan, self.policy.keeps_slo, len(twin.waiting))
        except PlanError:
            return
        for event in events:
            self.note(event)

    def take_parks(self) -> list[str]:
        """Return the jobs that have to leave their places since the last call."""
        parks, self._parks = self._parks, []
        return parks

    def find_park_s(self) -> None:
        """Find the next time at which a job may be parked because it has had its place for long enough."""
        parks = self.rules is not None and self.rules.park and self.state.waiting
        self.park_s = next_park_s(self.state, self.state.now_s + INSTANT_S) if parks else inf

    def _first_to_ask(self, job_id: str) -> int | None:
        """Return the position in the queue of the first job to ask about after a job's arrival.

        It is None if the new job waits behind one that waits for nodes.
        """
        waiting = self.state.waiting
        if waiting[0] == job_id:
            return 0
        if not self.state.cluster.quotas:
            return None
        if not self._head_is_known:
            return 0
        position = waiting.index(job_id)
        return position if self._head is None or self._head in waiting[position:] else None

    def _serve(self, now_s: float, position: int = 0) -> None:
        """Ask the policy about the waiting jobs in order, and begin again whenever one gets a placement.

        A job above its quota is passed over. Another one without a placement ends the pass, unless a running job can be parked for
        it, or the rules allow to pass it over.

        Args:
            now_s: Time of the instant, in seconds.
            position: Position to begin at: earlier jobs have been passed over, and nothing has changed since.
        """
        self._queue_may_advance, self._head_is_known, self._head = False, True, None
        rules, state = self.rules, self.state
        (queue, keys), quotas = ranked(state, rules), Quotas(state)
        fits = self._fitting(state, queue)
        while position < len(queue):
            job = state.job(queue[position])
            event = Arrived(now_s, job)
            if self._waits_for_link(state, job.id):
                admitted: bool | None = False
            elif quotas.bars(job):
                admitted = None
            else:
                admitted = fits[position] and self._admit(event, position, quotas, queue)
            if admitted is False and rules is not None and rules.park:
                admitted = self._park_for(event, position, queue, parkable_for(state, rules.factor, keys, job.id))
            if admitted is False and not (rules is not None and may_be_passed(state, rules, job.id)):
                self._head = job.id
                return
            position += 1
            if admitted:
                state = self.state if self.reserved is None else self.reserved.state
                (queue, keys), quotas, position = ranked(state, rules), Quotas(state), 0
                fits = self._fitting(state, queue)

    def _admit(self, event: Arrived, passed: int, quotas: Quotas, queue: Sequence[str]) -> bool | None:
        """Ask the policy about a waiting job.

        Args:
            event: Arrival of the job.
            passed: Number of jobs before it in the queue that have been passed over.
            quotas: Quotas in the current state.
            queue: Waiting jobs in order.

        Returns:
            Whether the job has a placement now, or None if it is passed over because of its user's quota.
        """
        state = self.state if self.reserved is None else self.reserved.state
        began_s = perf_counter()
        self._note_warm_start(event)
        names, shown = self._restrictions.confined.get(event.job.id), self.shown
        because = ""
        if self.why is not None and shown.tables.order.size:
            because = alone_because(shown, candidates(shown, event.job.id), bool(getattr(self.policy, "prune", False)))
        if event.job.id in self._restrictions.alone:
            shown = without(state, [group.id for group in state.group_list()])
        if names is None or self._nodes is None:
            plan = ask(self.policy, shown, event)
        else:
            self.settle(event.job.id)  # other jobs may have got places in this instant
            plan = confined_plan(shown, self._nodes, event.job.id, names)
        self.decision_s.append(perf_counter() - began_s)
        if state.cluster.quotas and (above := quotas.broken(plan, self.policy, queue)):
            return None if event.job.user in above else False
        self._carry_out(plan, passed, queue)
        if self.reserved is not None:
            return self.reserved.state.is_running(event.job.id)
        if self.why is not None and state.is_running(event.job.id) and len(state.group_of(event.job.id).jobs) == 1:
            self.why[event.job.id] = because
        if names is not None or event.job.id in self._alive:
            self.settle(event.job.id)
        return state.is_running(event.job.id)

    def _fitting(self, state: State, queue: Sequence[str]) -> Sequence[bool]:
        """Return whether to ask about each waiting job: with backfill and a policy that moves no jobs, only if it may fit."""
        only_places = getattr(self.policy, "only_places", False) and self.policy.keeps_slo
        if self.rules is None or not self.rules.backfill or not only_places:
            return [True] * len(queue)
        fits: list[bool] = may_fit(self._shown(state), rows_of(state, queue)).tolist()
        return fits

    def _waits_for_link(self, state: State, job_id: str) -> bool:
        return self.policy.keeps_slo and waits_for_link(state, job_id)

    def _park_for(self, event: Arrived, passed: int, queue: Sequence[str], running: list[str]) -> bool:
        """Park the first running job without which the policy has a place for a waiting one, and give it that place.

        Args:
            event: Arrival of the waiting job.
            passed: Number of jobs before it in the queue that have been passed over.
            queue: Waiting jobs in order.
            running: Running jobs that may be parked for it, in order.

        Returns:
            Whether there was such a job.
        """
        state = self.state if self.reserved is None else self.reserved.state
        for other, twin in without_each(state, running):
            plan = () if self._waits_for_link(twin, event.job.id) else ask(self.policy, self._shown(twin), event)
            places = any(isinstance(action, Place) and action.job_id == event.job.id for action in plan)
            if places and not (state.cluster.quotas and Quotas(twin).broken(plan, self.policy, queue)):
                self._carry_out((Park(other, event.job.id), *plan), passed, queue)
                return True
        return False

    def own_nodes(self, job_id: str) -> frozenset[str] | None:
        """Return the names of the nodes that a job must get that was just admitted, or None for any nodes."""
        if job_id in self._restrictions.confined:
            return self._restrictions.confined[job_id]
        enters_warm = job_id in self._alive and self.state.tables.jobs.entered_warm[self.state.row(job_id)]
        return self._alive[job_id] if enters_warm else None

    def _note_warm_start(self, event: Arrived) -> None:
        """Record the group, or the free nodes, where an arriving job could start without a cold start, if there are any."""
        alive, nodes = self._alive.get(event.job.id), self._nodes
        if alive is None or nodes is None:
            return
        self.settle(event.job.id)  # other jobs may have got places in this instant
        group = next((group for group, names in nodes.assigned_by_group().items() if alive == {*names}), None)
        if group is not None and self.state.tables.group_rows.get(group) is not None:
            self.note(Warm(event.at_s, event.job.id, group, tuple(sorted(alive))))
        elif alive <= {node.name for pool in POOLS for node in nodes.free(pool)}:
            self.note(Warm(event.at_s, event.job.id, None, tuple(sorted(alive))))
