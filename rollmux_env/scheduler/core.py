"""The scheduler: one state machine that decides, for replays and for real runs. It has no clock, no processes and no files.

A driver tells it facts and carries out its commands (`facts`, `commands`; `commands.ANSWERS` says which fact answers which).
All facts of an instant are told first; what follows from them is decided in this order:

    what jobs have done, pauses that end, departures and withdrawals (the policy is asked once), jobs on drained nodes, a tick, late
    jobs, the queue, arrivals, nodes for the places of groups, guests; then permits, group by group

    step(now_s, facts) -> Step          all of it: what a run does
    placements(now_s), permits(now_s)   its two halves, and a method for each fact: what a replay does, which answers each
                                        command before it takes the next one

The policy is asked later when fewer nodes are free than the state says: while nodes are lent, while guests or a job that moves are
still on nodes that the members of their group have left, and while jobs on lost nodes have not been cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import NamedTuple, get_args

from rollmux_env.cluster.events import Admitted, Begun, Event, Moved, Progress, Reprofiled, Resumed, Ticked
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.commands import Command, Evict, Grant, Lend, Move, Place, Seating, Shrink, Wait
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.facts import Arrived, Fact, PhaseOfShape
from rollmux_env.scheduler.holding import Holding
from rollmux_env.scheduler.nodes import LEASE, Assigned, NodePool, PoolName, PoolNode, Returned, Span
from rollmux_env.scheduler.planner import INSTANT_S, News, Planner
from rollmux_env.scheduler.relocation import other_places
from rollmux_env.scheduler.review import Review, job_keeping, job_starting
from rollmux_env.scheduler.seats import Seat, guest_seating, join, seating_of
from rollmux_env.scheduler.settling import Guests, Settling
from rollmux_env.scheduler.view import DispatchPolicy, HoldName
from rollmux_env.timing.tail import migration_of

Entry = Event | Assigned | Returned


class Step(NamedTuple):
    """What follows from the facts of an instant.

    Attributes:
        entries: what has changed, in order: to be made durable first. commands: to be carried out then.
    """

    entries: list[Entry]
    commands: list[Command]


class Scheduler:
    """Decides. See the module.

    Args:
        state: of the cluster, which the scheduler alone changes from now on.
        policy: where jobs go. dispatch: which phase of a group is next; None where there are no phases (the fluid replay).
        nodes: where nodes have names. None: the places of groups are all there is to say.
        make_policy: makes a policy like `policy`. Where it is given, jobs that take longer than their profile says are known anew,
            and jobs that break their SLO get a better place.

    Attributes:
        seats: jobs in groups and guests, by id.
        migration: when `threshold` is to be told of a rollout, and what its tail keeps; None: never.
        now_s: the time of the last instant.
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
        self.planner = Planner(state, policy)
        self.review = None if make_policy is None else Review(make_policy)
        self.guests = Guests()
        self.stopped = False
        self.seats: dict[str, Seat] = {}
        self._settling: Settling | None = None
        if nodes is not None:
            self.planner.nodes = nodes
            self._settling = Settling(nodes, self.planner, self.guests, self.seats)
            self.planner.settle = self._settling.settle
        self.migration = migration_of(dispatch)
        self.now_s = state.now_s
        self._dispatch = dispatch
        self._holding = None if nodes is None else Holding(nodes, self.migration)
        self._groups: dict[int, Dispatcher] = {}
        self._touched: dict[Dispatcher, None] = {}
        self.missing: set[str] = set()  # nodes that are gone, and are still somebody's
        self._uncleared: set[str] = set()  # jobs on these
        self._news = News()  # what the state does not know yet
        self._resizes = False  # there are more or fewer nodes in service
        self._commands: list[Command] = []

    def step(self, now_s: float, facts: Iterable[Fact] = ()) -> Step:
        """Take the facts of an instant, and say what follows.

        Raises:
            ValueError, KeyError: a fact that cannot be.
            PlanError, InvariantError: a policy or the scheduler broke a numbered invariant.
        """
        self.now_s = now_s
        for fact in facts:
            _TAKES[type(fact)](self, *fact)
        commands = [*self.placements(now_s), *self.permits(now_s)]
        return Step(self.take_entries(), commands)

    def take_entries(self) -> list[Entry]:
        """Hand over what has changed since this was last asked."""
        assignments = [] if self._settling is None else self._settling.take_assignments()
        return [*self.planner.take_events(), *assignments]

    def spans(self, job_id: str, now_s: float) -> tuple[Span, ...]:
        """What the rollout of a job has held of its nodes until now; nothing where that is all of them, all the time."""
        return self._holding.shares.spans(job_id, now_s) if self._holding is not None else ()

    def close(self, now_s: float) -> list[Entry]:
        """What is still to be journalled when a run stops: what jobs have done, and that until now nodes were provisioned."""
        self.planner.leave(now_s, News(progress=self._news.progress))
        self._news.progress = {}
        self.planner.note(Ticked(now_s))
        return self.take_entries()

    def restore(self, now_s: float, cluster: Cluster, gone: Collection[str]) -> list[str]:
        """Go on with a state that has groups, on the nodes that there are now; the next step begins with the places of jobs.

        Args:
            cluster: as the run was begun, with the most nodes that it may have.
            gone: ids of jobs that have ended, whose departure may not be known.

        Returns:
            Members of groups for which there are too few nodes: they have departed, and may arrive again.
        """
        state, nodes, settling = self.state, self.nodes, self._settling
        assert nodes is not None and settling is not None
        self.now_s = now_s
        running = [job_id for group in state.group_list() for job_id in group.jobs]
        departed = {job_id: False for job_id in running if job_id in gone}
        withdrawn = [job_id for job_id in state.waiting if job_id in gone]
        self.planner.leave(now_s, News(resumed=state.pauses.ending(inf), departed=departed, withdrawn=withdrawn))
        again: list[str] = []
        while True:
            settling.restore(cluster)
            most = settling.most()
            if state.rollout_nodes <= most["rollout"] and state.training_nodes <= most["training"]:
                break
            again += (last := state.group_list()[-1].jobs)
            self.planner.leave(now_s, News(departed=dict.fromkeys(last, False)))
        settling.resize(self._resizes)
        self._resizes = bool(nodes.drained)
        settling.settle()
        for group in state.group_list():
            for job_id in group.jobs:
                self.seats[job_id] = Seat(job_id, *self._seated(job_id))
                self._commands.append(Place(job_id, self.seats[job_id].seating))
        return again

    # Facts.

    def arrived(self, job: Job, again: bool = False, alive: frozenset[str] = frozenset()) -> None:
        self._news.arriving.append(Arrived(job, again, alive))

    def confined(self, job_id: str, names: frozenset[str]) -> None:
        self.planner.confined[job_id] = names
        self.planner.wake()

    def alone(self, job_id: str) -> None:
        self.planner.alone.add(job_id)
        self._resizes = True

    def estimated(self, job_id: str, phases: frozenset[PhaseOfShape]) -> None:
        if self.review is not None:
            self.review.estimates.add(job_id, phases)

    def unprofiled(
        self, needs: Mapping[str, Mapping[PoolName, int]], rule: DispatchPolicy | None = None, names: frozenset[str] = frozenset()
    ) -> None:
        self.guests.ask(needs, rule, names)

    def profiled(self, job_id: str) -> None:
        self._quit(self.seats.pop(job_id))
        self.guests.go(job_id)

    def ready(self, job_id: str, phase: HoldName, parts: tuple[PoolNode, ...] = ()) -> None:
        seat = self.seats[job_id]
        if seat.failed:
            return
        if phase == "rollout":
            seat.parts = parts
        seat.group.ready(job_id, phase)
        self._touched[seat.group] = None

    def threshold(self, job_id: str) -> None:
        seat = self.seats[job_id]
        if self._holding is None or len(seat.parts) > 1:
            seat.group.threshold(job_id)
            self._touched[seat.group] = None

    def shrunk(self, job_id: str) -> None:
        assert self._holding is not None
        self._holding.shrunk(job_id, self.now_s)

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        seat = self.seats[job_id]
        seat.group.continued(job_id, phase, runs, sampled)
        if runs and self._holding is not None:
            self._holding.begin(seat, phase, self.now_s)

    def finished(
        self,
        job_id: str,
        phase: HoldName,
        seconds: float,
        cold: bool = False,
        counts: bool = True,
        device_gb: float = 0.0,
        cold_s: float | None = None,
    ) -> None:
        seat = self.seats[job_id]
        if self._holding is not None:
            self._holding.give(seat, phase)
        seat.group.finished(job_id, phase, seconds, counts)
        self._touched[seat.group] = None
        if seat.guest or phase == "sync":
            return
        if phase == "init":
            self._made(job_id, seconds)
            return
        if self.review is not None and counts:
            self.review.pace(job_id).phase(phase, seconds, cold)
        if device_gb and (known := job_keeping(self.state, job_id, phase, device_gb)) is not None:
            self._know(known)
        if cold_s is not None:
            self._know(job_starting(self.state.job(job_id), phase, cold_s))

    def _made(self, job_id: str, seconds: float) -> None:
        """A job has its models and its engines: that was its cold start, and its SLO counts from now on if it has done nothing."""
        if not self.state.iterations_done(job_id):
            self.planner.note(Begun(self.now_s, job_id))
        job = self.state.job(job_id)
        if seconds > sum(phase.switch.cold_s for phase in job.phases(0)):
            self._know(job_starting(job_starting(job, "rollout", seconds / 2), "training", seconds / 2))

    def sampled(self, job_id: str) -> None:
        group = self.seats[job_id].group
        group.sampled(job_id)
        self._touched[group] = None

    def synced(self, job_id: str, seconds: float) -> None:
        if self.review is not None and not self.seats[job_id].guest:
            self.review.pace(job_id).phase("sync", seconds, False)

    def iterated(self, progress: Progress, seconds: float | None = None, movable: bool = True) -> None:
        self._news.progress[progress.job_id] = progress
        if not movable:
            self._stays(progress.job_id)
        if self.review is not None and seconds is not None:
            self.review.iterated(progress.job_id, seconds)

    def vacated(self, job_id: str, progress: Progress | None = None) -> None:
        seat = self.seats[job_id]
        if not seat.moving:
            raise ValueError(f"job {job_id} has not been moved")
        if progress is not None:
            self._news.progress[job_id] = progress
        self._forget(job_id)
        self._quit(seat)
        seat.moving = False
        seat.group, seat.seating = self._seated(job_id)

    def resumed(self, job_id: str) -> None:
        if job_id not in self._news.resumed:  # it may have left at the same instant
            self._news.resumed.append(job_id)

    def left(self, job_id: str, over_budget: bool = False) -> None:
        if self._dispatch is not None:
            seat = self.seats.pop(job_id)
            if not seat.group.leaving(job_id):
                raise ValueError(f"job {job_id} has an iteration in hand")
            self._unsettle(seat.seating.group)
            if self._holding is not None:
                self._holding.give_all(seat)
            self._after(seat.group)
        self._depart(job_id, over_budget)

    def end_stays(self, now_s: float) -> None:
        """Let jobs leave that have done their stay by now, or spent their budget, as the fluid replay has it: they progress at one
        iteration a period until something changes."""
        done = self.state.tables.departing(now_s + INSTANT_S)
        for job_id in done:
            self.left(job_id)
        for job_id in self.state.charges.spent(now_s + INSTANT_S):
            if job_id not in done:
                self.left(job_id, over_budget=True)

    def failed(self, job_id: str) -> None:
        self._commands.append(Evict(job_id))
        if job_id in self.state.waiting:
            self._news.withdrawn.append(job_id)
        seat = self.seats.get(job_id)
        if seat is None:
            self.guests.go(job_id)
            return
        seat.failed = True
        seat.group.withdraw(job_id)
        self._touched[seat.group] = None
        if self._holding is not None:
            self._holding.withdraw(job_id)

    def cleared(self, job_id: str, progress: Progress | None = None) -> None:
        self._uncleared.discard(job_id)
        seat = self.seats.pop(job_id, None)
        if seat is None:
            return
        if progress is not None:
            self._news.progress[job_id] = progress
        self._quit(seat)
        if seat.guest:
            self.guests.go(job_id)
        else:
            self._depart(job_id)

    def halted(self, job_id: str) -> None:
        seat = self.seats.pop(job_id, None)
        if seat is not None:
            self._quit(seat)
            self.guests.go(job_id)

    def absent(self, job_id: str) -> None:
        seat = self.seats[job_id]
        if not seat.failed:
            if self._holding is not None:
                self._holding.withdraw(job_id)
                self._holding.give(seat, "rollout")
            seat.group.absent(job_id)
            self._touched[seat.group] = None

    def lost(self, names: frozenset[str]) -> None:
        self.missing |= names
        for job_id, seat in [*self.seats.items()]:
            if self._nodes_of(seat) & names:
                self._uncleared.add(job_id)
                if not seat.failed:
                    self.failed(job_id)

    def drained(self, names: frozenset[str]) -> None:
        assert self.nodes is not None
        self.nodes.drained |= names
        self._resizes = True

    def undrained(self, names: frozenset[str]) -> None:
        assert self.nodes is not None
        self.nodes.drained -= names
        self._resizes = True

    def joined(self, nodes: tuple[PoolNode, ...]) -> None:
        assert self._settling is not None
        self._settling.join(nodes)
        self._resizes = True

    def stop(self) -> None:
        self.stopped = True

    # What follows.

    @property
    def asks(self) -> bool:
        """Whether the policy may be asked: as many nodes are free as the state says."""
        if self.stopped or self.missing:
            return False
        state, nodes = self.state, self.nodes
        if nodes is None:
            return True
        pools, used = state.cluster.pools, {"rollout": state.rollout_nodes, "training": state.training_nodes}
        return all(
            nodes.free_count(side) >= min(pools[side].max_nodes or inf, nodes.count(side)) - used[side]
            for side in state.cluster.sides
        )

    @property
    def stuck(self) -> bool:
        """Whether jobs wait that nothing will wake, unless others arrive."""
        if self.nodes is not None and self.nodes.drained:
            return False
        return bool(self.state.waiting) and not self.state.tables.order.size and not self.guests.present and not self.stopped

    def is_to_go(self, job_id: str) -> bool:
        """Whether a job is on a drained node and there is no other place for it: it is to make room, and to wait for one.

        A job that goes says so between two iterations, when what it has done is kept: it fails and arrives again.
        """
        return job_id in self.seats and not self.stopped and self._is_to_move(job_id)

    def placements(self, now_s: float) -> Iterator[Command]:
        """Decide who goes where, then say it, one command after the other."""
        self.now_s = now_s
        commands, self._commands = self._commands, []
        yield from commands
        ended = self.nodes is not None and self.guests.end()
        if ended:
            self._unsettle(LEASE)
        if not (ended or self._is_due(now_s)):
            return
        planner, first = self.planner, len(self.planner.events)
        news, self._news = self._news, News()
        planner.leave(now_s, news)
        self._settle()
        asks = self.asks
        if asks and planner.hidden:
            self._relocate()
        planner.answer(now_s, asks)
        if self.review is not None:
            yield from self._review(self.review, asks)
        planner.admit(now_s, news.arriving, asks)
        if self._settling is not None:
            self._settling.settle()
        if self._dispatch is None:
            return
        yield from self._said(planner.events[first:])
        for arrival in news.arriving:
            if arrival.job.id in self.state.waiting:
                yield Wait(arrival.job.id)
        if self._settling is not None and not self.stopped:
            yield from self._lend(self._settling)

    def _settle(self) -> None:
        """Let places have nodes, and the state know how many are in service, now that some have left."""
        settling = self._settling
        if settling is None:
            return
        if self.missing and not self._uncleared:
            settling.lose(self.missing)
            self.missing.clear()
            self._resizes = True
        settling.settle()
        if self._resizes or settling.nodes.drained or self.planner.alone:
            settling.resize(self._resizes)
            self._resizes = False
            self.planner.hidden = settling.hidden()

    def _said(self, events: Iterable[Event]) -> Iterator[Command]:
        """What a driver is told of what has happened to places."""
        for event in events:
            match event:
                case Resumed(job_id=job_id):
                    if job_id in self.seats:
                        yield Place(job_id, self.seats[job_id].seating)
                case Admitted(job_id=job_id):
                    self.seats[job_id] = Seat(job_id, *self._seated(job_id))
                    yield Place(job_id, self.seats[job_id].seating)
                case Moved(job_id=job_id):
                    self.seats[job_id].moving = True
                    yield Move(job_id)

    def permits(self, now_s: float) -> list[Command]:
        """Give the permits that are due, group by group."""
        commands: list[Command] = []
        holding = self._holding
        if self.stopped:
            return commands
        if holding is not None:
            commands += holding.make_room(self.seats, now_s)
        touched, self._touched = self._touched, {}
        for dispatcher in touched:
            group = dispatcher.group
            if not (group.waiting or group.syncs):
                continue
            group.now_s = now_s
            permits = dispatcher.permits()
            if holding is not None:
                commands += holding.grants(permits, dispatcher.migrations, self.seats, now_s)
                continue
            for job_id in dispatcher.migrations:
                commands.append(Shrink(job_id))
            for job_id, phase in permits:
                commands.append(Grant(job_id, phase))
        return commands

    def _is_due(self, now_s: float) -> bool:
        """Whether there is anything to decide about placements."""
        news = self._news
        if news.resumed or news.departed or news.withdrawn or news.arriving or self._resizes:
            return True
        if self.missing and not self._uncleared:
            return True
        if self.planner.ticks.next_s <= now_s + INSTANT_S or (self.planner.owes and self.asks):
            return True
        return (self.review is not None and self.review.is_due) or (self.guests.waiting and not self.guests.present)

    def _review(self, review: Review, asks: bool) -> Iterator[Command]:
        """See how jobs do that have done an iteration."""
        job_ids = [job_id for job_id in review.due() if job_id in self.seats]
        here = [job_id for job_id in job_ids if not self.seats[job_id].moving]  # others may be in another shape than the state says
        for event in review.reprofiled(self.state, here, self.now_s):
            self.planner.note(event)
        for job_id in job_ids:
            seat = self.seats[job_id]
            movable = asks and not seat.moving and not seat.failed and seat.group.number not in self.planner.hidden
            finding = review.look(self.planner.shown if movable else self.state, job_id, movable)
            moves = self.planner.move(finding.plan)
            if finding.risk is not None:
                yield finding.risk if moves else finding.risk._replace(moved=False)

    def _is_to_move(self, job_id: str) -> bool:
        """Whether a job is on a drained node, or disturbs one that is to be alone, and can be moved."""
        seat = self.seats[job_id]
        return self._settling is not None and not seat.moving and self._settling.is_drained(seat)

    def _relocate(self) -> None:
        """Move jobs from drained nodes, as far as there is room."""
        going = [job_id for job_id in self.seats if self._is_to_move(job_id)]
        if going:
            policy = self.planner.policy if self.review is None else self.review.make_policy()
            for move in other_places(self.state, going, self.planner.hidden, policy):
                self.planner.note(move)

    def _lend(self, settling: Settling) -> Iterator[Command]:
        """Let the next jobs be profiled, if there are nodes for it."""
        while (batch := self.guests.next(self.state, settling.nodes)) is not None:
            settling.unsettle(LEASE)
            settling.settle()
            number = self.guests.group
            assert number is not None
            group = self._group(number) if batch.rule is None else Dispatcher(batch.rule, number)
            for job_id, needs in batch.needs.items():
                seating = guest_seating(self.state, settling.nodes, number, needs)
                self.seats[job_id] = Seat(job_id, group, seating, guest=True)
                group.joined(job_id, () if seating.colocated else seating.rollout, 1.0, 1.0)
                yield Lend(job_id, seating)

    def _seated(self, job_id: str) -> tuple[Dispatcher, Seating]:
        """Make a job the last member of the group that the state says."""
        seating = seating_of(self.state, self.nodes, job_id)
        group = self._group(seating.group)
        join(group, self.state, job_id, () if seating.colocated else seating.rollout, self.now_s)
        return group, seating

    def _group(self, number: int) -> Dispatcher:
        """The members of a group, or nobody yet."""
        if number not in self._groups:
            assert self._dispatch is not None
            self._groups[number] = Dispatcher(self._dispatch, number)
        return self._groups[number]

    def _nodes_of(self, seat: Seat) -> set[str]:
        """Names of a job's nodes, where it moves of both places."""
        there = seating_of(self.state, self.nodes, seat.job_id) if seat.moving else None
        return seat.nodes() | ({node.name for node in there.rollout_nodes + there.training_nodes} if there else set())

    def _quit(self, seat: Seat) -> None:
        """A job is no member of its group any more, and holds nothing."""
        self._unsettle(seat.seating.group)
        if self._holding is not None:
            self._holding.give_all(seat)
        seat.group.gone(seat.job_id)
        self._after(seat.group)

    def _unsettle(self, number: int) -> None:
        """The nodes of a group, or lent ones, may be others' than the state and the seats say."""
        if self._settling is not None:
            self._settling.unsettle(number)

    def _after(self, group: Dispatcher) -> None:
        """Somebody has left a group."""
        self._touched[group] = None
        if not group.group.n:
            self._groups.pop(group.number, None)

    def _depart(self, job_id: str, over_budget: bool = False) -> None:
        """A job that has a place leaves it for ever."""
        if self.state.is_paused(job_id):
            self.resumed(job_id)
        self._news.departed[job_id] = over_budget
        self._forget(job_id)
        if self.review is not None:
            self.review.estimates.forget(job_id)

    def _stays(self, job_id: str) -> None:
        """A job cannot be moved; one that is to move already begins anew."""
        job = self.state.job(job_id)
        if job.movable:
            self._know(job.model_copy(update={"movable": False}))
        if self.seats[job_id].moving:
            self.failed(job_id)

    def _know(self, job: Job) -> None:
        """A job is known anew."""
        self.state.now_s = self.now_s
        self.planner.note(Reprofiled(self.now_s, job))

    def _forget(self, job_id: str) -> None:
        if self.review is not None:
            self.review.forget(job_id)


_TAKES: dict[type[Fact], Callable[..., None]] = {kind: getattr(Scheduler, kind.__name__.lower()) for kind in get_args(Fact)}
"""The method that takes each kind of fact; a kind without one is an error here."""
