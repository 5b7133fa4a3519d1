"""The scheduler: one state machine that decides for replays and for real runs. It has no clock, no processes and no files.

A driver reports facts and carries out commands (`facts`, `commands`; `commands.ANSWERS` says which fact answers which command). All
facts of an instant are reported first. Their consequences are then decided in this order:

1. progress of jobs, ends of pauses, departures and withdrawals (the policy is asked once)
2. jobs on drained nodes
3. a tick
4. late jobs
5. the queue
6. arrivals
7. nodes for the places of groups
8. guests
9. permits, group by group

    step(now_s, facts) -> Step                  everything: what a run uses
    placements(now_s), members.permits(now_s)   its two halves, with a method for each fact: what a replay uses, which answers
                                                each command before it takes the next one

Facts of phases go to `Members`, those of jobs to `JobFacts`, those of nodes to `Settling`; this module decides the consequences.

Nodes that only guests use are out of service for the policy. It is asked later if fewer nodes are free than the state says: while a
moving job still uses nodes that the members of its group have left, and while jobs on lost nodes are not cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Event, Lent, Moved, Resumed, Ticked
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.commands import Command, KeepWaiting, StartJob, Vacate, YieldPlace
from rollmux_env.scheduler.facts import Fact
from rollmux_env.scheduler.guests import Guests
from rollmux_env.scheduler.jobs import JobFacts
from rollmux_env.scheduler.members import Members
from rollmux_env.scheduler.nodes import PROFILING_GROUP, Assigned, NodePool, Returned
from rollmux_env.scheduler.planner import JobChanges, Planner, Restrictions
from rollmux_env.scheduler.relocation import other_places
from rollmux_env.scheduler.review import Review
from rollmux_env.scheduler.seats import Seat, seating_on
from rollmux_env.scheduler.serving import QueueServer
from rollmux_env.scheduler.settling import Settling
from rollmux_env.scheduler.ticks import INSTANT_S
from rollmux_env.scheduler.view import DispatchPolicy

Entry = Event | Assigned | Returned


class Step(NamedTuple):
    """The consequences of the facts of an instant.

    Attributes:
        entries: Journal entries of all changes, in order, to be made durable first.
        commands: Commands to be carried out then.
    """

    entries: list[Entry]
    commands: list[Command]


class Scheduler:
    """The state machine; see the module.

    Args:
        state: State of the cluster, which only the scheduler changes from now on.
        policy: Placement policy.
        dispatch: Dispatch policy, or None if there are no phases (the fluid replay).
        nodes: Nodes by name, or None if nodes have no names.
        make_policy: Factory of policies like `policy`, or None. With it, jobs that take longer than their profile get a new
            profile, and jobs that break their SLO get a better place.

    Attributes:
        state: State of the cluster.
        nodes: Nodes by name, or None.
        planner: Owner of the state, which checks and applies the policy's plans.
        server: Server of the queue.
        restrictions: Restrictions of the jobs' places.
        guests: Jobs that are profiled.
        review: Observer of the jobs' speed, or None without `make_policy`.
        members: Receiver of the facts of phases.
        jobs: Receiver of the facts of jobs.
        settling: Receiver of the facts of nodes, or None without `nodes`.
        receivers: Method that receives each kind of fact.
    """

    def __init__(
        self,
        state: State,
        policy: Policy,
        dispatch: DispatchPolicy | None = None,
        nodes: NodePool | None = None,
        make_policy: Callable[[], Policy] | None = None,
    ) -> None:
        self.state = state
        self.nodes = nodes
        self.restrictions = Restrictions()
        self.planner = Planner(state, policy, self.restrictions, nodes, parks_later=dispatch is not None)
        self.server = QueueServer(self.planner)
        self.review = None if make_policy is None else Review(make_policy)
        self.guests = Guests()
        self.settling: Settling | None = None
        seats: dict[str, Seat] = {}
        if nodes is not None:
            self.settling = Settling(nodes, self.planner, self.restrictions, self.guests, seats)
            self.server.settle = self.settling.settle
        self.members = Members(state, dispatch, self.settling, seats)
        self.jobs = JobFacts(self.planner, self.members, self.guests, self.settling, self.restrictions, self.review)
        self._has_phases = dispatch is not None
        self.receivers = _receivers_of(self.jobs, self.members, self.guests, self.settling)

    def step(self, now_s: float, reported: Iterable[Fact] = ()) -> Step:
        """Take the facts of an instant, and return their consequences.

        Args:
            now_s: Time of the instant, in seconds.
            reported: Facts in order.

        Raises:
            ValueError: If a fact is impossible in the current state.
            KeyError: If a fact names an unknown job.
            PlanError: If a policy broke a numbered invariant.
            InvariantError: If the scheduler broke a numbered invariant.
        """
        self.members.now_s = now_s
        self.record(reported)
        commands = [*self.placements(now_s), *self.members.permits(now_s)]
        return Step(self.take_entries(), commands)

    def record(self, reported: Iterable[Fact]) -> None:
        """Record facts without deciding their consequences."""
        for fact in reported:
            self.receivers[type(fact)](*fact)

    def take_entries(self) -> list[Entry]:
        """Return and clear the journal entries of the changes since the last call."""
        assignments = [] if self.settling is None else self.settling.take_assignments()
        return [*self.planner.take_events(), *assignments]

    def close(self, now_s: float) -> list[Entry]:
        """Return the journal entries of the end of a run: the progress of jobs, and the time until which nodes were provisioned."""
        changes = self.jobs.changes
        self.planner.leave(now_s, JobChanges(progress=changes.progress))
        changes.progress = {}
        self.end_lending(now_s)
        self.planner.note(Ticked(now_s))
        return self.take_entries()

    def restore(self, now_s: float, cluster: Cluster, gone: Collection[str], staying: Mapping[str, Collection[str]]) -> list[str]:
        """Continue with a state that has groups, on the nodes present now. The next step begins with the places of jobs.

        Args:
            now_s: Current time, in seconds.
            cluster: Cluster as the run began, with the limits of its pools.
            gone: Identifiers of jobs that have ended, whose departure may not be in the state.
            staying: Names of the nodes that moving jobs use until they have finished their iteration, by job id. A job that still
                has all of them keeps them until it has vacated them; all other jobs begin in their last placements.

        Returns:
            Members of groups for which there are too few nodes. They have departed, and may arrive again.
        """
        state, nodes, settling, members = self.state, self.nodes, self.settling, self.members
        assert nodes is not None and settling is not None
        members.now_s = now_s
        running = [job_id for group in state.group_list() for job_id in group.jobs]
        departed = {job_id: False for job_id in running if job_id in gone}
        withdrawn = [job_id for job_id in state.waiting if job_id in gone]
        seatings = {job_id: place for job_id, names in staying.items() if (place := seating_on(nodes, names)) is not None}
        resumed = [job_id for job_id in state.pauses.ending(inf) if job_id not in seatings]
        self.planner.leave(now_s, JobChanges(resumed=resumed, departed=departed, withdrawn=withdrawn))
        commands = [command for job_id, seating in seatings.items() for command in members.stay(job_id, seating)]
        self.end_lending(now_s)
        again = self._drop_excess_groups(settling, cluster)
        settling.resize()
        settling.resizes = bool(nodes.drained)
        settling.settle()
        self.planner.wake()
        self.jobs.commands += [command for command in commands if command.job_id in members.seats]
        placed = [job_id for group in state.group_list() for job_id in group.jobs if job_id not in members.seats]
        self.jobs.commands += map(members.place, placed)
        return again

    def _drop_excess_groups(self, settling: Settling, cluster: Cluster) -> list[str]:
        """Let the members of the last groups depart until there are enough nodes for the others, and return their identifiers."""
        state = self.state
        dropped: list[str] = []
        while True:
            settling.restore(cluster)
            most = settling.most()
            if state.rollout_nodes <= most["rollout"] and state.training_nodes <= most["training"]:
                return dropped
            dropped += (last := state.group_list()[-1].jobs)
            for job_id in last:
                self.members.remove(job_id)
            resumed = [job_id for job_id in last if state.is_paused(job_id)]
            self.planner.leave(self.members.now_s, JobChanges(resumed=resumed, departed=dict.fromkeys(last, False)))

    def end_lending(self, now_s: float) -> None:
        """Put lent nodes into service again, and charge no job for them any longer."""
        if self.state.charges.lent_to:
            sizes = {name: pool.max_nodes or 0 for name, pool in self.state.cluster_with_lent.pools.items()}
            self.planner.resize(now_s, sizes.get("rollout", 0), sizes["training"])
            self.planner.note(Lent(now_s, {}, 0, 0))

    @property
    def asks(self) -> bool:
        """Whether the policy may be asked: whether as many nodes are free as the state says."""
        settled = self.settling is None or self.settling.is_settled
        return settled and not self.members.stopped and self.planner.reserved is None

    @property
    def stuck(self) -> bool:
        """Whether jobs wait that only further arrivals could wake."""
        state, comes = self.state, self.guests.present or self.members.stopped or self.planner.must_ask_policy
        return bool(state.waiting) and not (comes or state.tables.order.size or (self.nodes is not None and self.nodes.drained))

    def must_vacate(self, job_id: str) -> bool:
        """Return whether a job has to give up its place, because it is on a drained node and has no other place.

        A job that gives up its place says so between two iterations, when its progress is saved: it fails and arrives again.
        """
        return job_id in self.members.seats and not self.members.stopped and self._is_to_move(job_id)

    def placements(self, now_s: float) -> Iterator[Command]:
        """Decide about placements, and yield the commands one after the other."""
        planner, jobs, members, settling = self.planner, self.jobs, self.members, self.settling
        members.now_s = now_s
        # 1. Give the commands that facts have left behind, and take the nodes of guests that are done.
        commands, jobs.commands = jobs.commands, []
        yield from commands
        if not (self._end_guests() or self._is_due(now_s)):
            return
        # 2. Apply what has happened: progress, ends of pauses, departures.
        first = len(planner.events)
        changes, jobs.changes = jobs.changes, JobChanges()
        planner.leave(now_s, changes)
        if settling is not None:
            settling.follow()
        planner.redeem((settling is None or settling.is_settled) and not members.stopped)
        # 3. Move jobs away from drained nodes, and ask the policy about departures and ticks.
        asks = self.asks
        if asks and self.restrictions.hidden:
            self._relocate()
        planner.answer(now_s, asks)
        # 4. Review the speed of jobs that have finished an iteration.
        if self.review is not None:
            yield from self._review(self.review, asks)
        # 5. Serve the queue and place the jobs that arrive.
        self.server.admit(now_s, changes.arriving, asks)
        if settling is not None:
            settling.settle()
        # 6. Say where jobs are now, and lend free nodes to guests.
        if self._has_phases:
            yield from self._commands_of(planner.events[first:])
            yield from map(YieldPlace, planner.take_parks())
            yield from (KeepWaiting(one.job.id) for one in changes.arriving if one.job.id in self.state.waiting)
            yield from self._lend()

    def _lend(self) -> Iterator[Command]:
        """Lend free nodes to guests, and charge them."""
        if self.members.stopped or self.planner.reserved is not None:  # reserved places may need the nodes that are free
            return
        yield from self.members.lend(self.guests)
        if self.settling is not None and self.guests.present:
            self.settling.follow_guests()
            if self.settling.resizes:
                self.settling.resize()

    def _end_guests(self) -> bool:
        """Take the nodes of guests that are done, and return whether there were any."""
        if self.settling is None or self.guests.group is None or not self.guests.end():
            return False
        self.settling.mark_unsettled(PROFILING_GROUP)
        return True

    def _commands_of(self, events: Iterable[Event]) -> Iterator[Command]:
        """Yield the commands that follow from events about places."""
        seats, comes_later = self.members.seats, set[str]()
        for event in events:
            match event:
                case Resumed(job_id=job_id):
                    if job_id in seats:
                        yield StartJob(job_id, seats[job_id].seating)
                case Admitted(job_id=job_id):
                    place = self.members.place(job_id)
                    if self.state.is_paused(job_id):  # it was parked, or moves at once: it begins when its pause ends
                        comes_later.add(job_id)
                    else:
                        yield place
                case Moved(job_id=job_id) if job_id not in comes_later:
                    seats[job_id].moving = True
                    yield Vacate(job_id)

    def _is_due(self, now_s: float) -> bool:
        """Return whether there is anything to decide about placements."""
        changes = self.jobs.changes
        if changes.resumed or changes.departed or changes.withdrawn or changes.arriving or changes.parked or changes.limits:
            return True
        if self.settling is not None and self.settling.is_due:
            return True
        if self.planner.next_s <= now_s + INSTANT_S or (self.planner.must_ask_policy and self.asks):
            return True
        if self.review is not None and self.review.due:
            return True
        return bool(self.guests.waiting) and self.guests.may_begin(self.state)

    def _review(self, review: Review, asks: bool) -> Iterator[Command]:
        """Review the jobs that have finished an iteration."""
        seats = self.members.seats
        job_ids = [job_id for job_id in review.take_due() if job_id in seats]
        here = [job_id for job_id in job_ids if not seats[job_id].moving]  # moving jobs may be in another shape than the state says
        for event in review.reprofiled(self.state, here, self.members.now_s):
            self.planner.note(event)
        for job_id in job_ids:
            seat = seats[job_id]
            movable = asks and not seat.moving and not seat.failed and seat.group.number not in self.restrictions.hidden
            finding = review.review_job(self.planner.shown if movable else self.state, job_id, movable)
            moves = self.planner.move(finding.plan)
            if finding.risk is not None:
                yield finding.risk if moves else finding.risk._replace(moved=False)

    def _is_to_move(self, job_id: str) -> bool:
        """Return whether a job has to leave its nodes and can, and has not been moved yet."""
        seat = self.members.seats[job_id]
        return self.settling is not None and not seat.moving and self.settling.is_drained(seat)

    def _relocate(self) -> None:
        """Move jobs from drained nodes, as far as there is room. Those that may only be parked leave for the queue."""
        state = self.state
        going = [job_id for job_id in self.members.seats if self._is_to_move(job_id) and state.job(job_id).movable]
        if going:
            policy = self.planner.policy if self.review is None else self.review.make_policy()
            for move in other_places(state, going, self.restrictions.hidden, policy, self.restrictions.alone):
                self.planner.note(move)


def _receivers_of(
    jobs: JobFacts, members: Members, guests: Guests, settling: Settling | None
) -> dict[type[Fact], Callable[..., None]]:
    """Return the receiver of each kind of fact; facts of nodes have one only if nodes have names."""
    table: dict[type[Fact], Callable[..., None]] = {
        facts.Queued: jobs.arrived,
        facts.Confined: jobs.confined,
        facts.Estimated: jobs.estimated,
        facts.Unprofiled: guests.ask,
        facts.Profiled: jobs.profiled,
        facts.Ready: members.ready,
        facts.Threshold: members.threshold,
        facts.Shrunk: members.shrunk,
        facts.Finished: jobs.finished,
        facts.Continued: members.continued,
        facts.Sampled: members.sampled,
        facts.Synced: jobs.synced,
        facts.Iterated: jobs.iterated,
        facts.Vacated: jobs.vacated,
        facts.PauseEnded: jobs.resumed,
        facts.Left: jobs.left,
        facts.YieldedPlace: jobs.yielded,
        facts.Failed: jobs.failed,
        facts.Cleared: jobs.cleared,
        facts.Halted: jobs.halted,
        facts.QuotaChanged: jobs.quota_changed,
        facts.MonthStarted: jobs.month_started,
        facts.Absent: members.absent,
        facts.RequestsWithdrawn: members.requests_withdrawn,
        facts.Stop: members.stop,
    }
    if settling is not None:
        table[facts.Alone] = settling.alone
        table[facts.Lost] = jobs.lost
        table[facts.Drained] = settling.drained
        table[facts.Undrained] = settling.undrained
        table[facts.Joined] = settling.joined
    return table
