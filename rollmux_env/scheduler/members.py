"""The members of groups: the phases that they report, the permits that they get, and the nodes that they hold of their places.

What a phase does to a group, its dispatcher says; what it does to nodes, `Holding`, where nodes have names.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.commands import Command, Grant, Lend, Place, Seating, Shrink
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.guests import Guests
from rollmux_env.scheduler.holding import Holding
from rollmux_env.scheduler.nodes import LEASE, PoolNode, Span
from rollmux_env.scheduler.seats import Seat, guest_seating, join, seating_of
from rollmux_env.scheduler.settling import Settling
from rollmux_env.scheduler.view import DispatchPolicy, HoldName
from rollmux_env.timing.tail import migration_of


class Members:
    """Jobs in groups and guests. A method takes the fact that has its name.

    Args:
        state: says which jobs are in which group.
        dispatch: which phase of a group is next; None where there are no phases, and so no seats (the fluid replay).
        settling: of nodes that have names; None: the places of groups are all there is to say.
        seats: by id; `settling` sees them too.

    Attributes:
        seats: as given.
        migration: when `threshold` is to be told of a rollout, and what its tail keeps; None: never.
        now_s: the time of the last instant. stopped: nothing more is to begin.
    """

    def __init__(self, state: State, dispatch: DispatchPolicy | None, settling: Settling | None, seats: dict[str, Seat]) -> None:
        self.seats = seats
        self.migration = migration_of(dispatch)
        self.now_s = state.now_s
        self.stopped = False
        self._state = state
        self._dispatch = dispatch
        self._settling = settling
        self._nodes = None if settling is None else settling.nodes
        self._holding = None if self._nodes is None else Holding(self._nodes, self.migration)
        self._groups: dict[int, Dispatcher] = {}
        self._touched: dict[Dispatcher, None] = {}

    # Facts.

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
        if not seat.failed and (self._holding is None or len(seat.parts) > 1):
            seat.group.threshold(job_id)
            self._touched[seat.group] = None

    def shrunk(self, job_id: str) -> None:
        assert self._holding is not None
        self._holding.shrunk(job_id, self.now_s)

    def finished(self, job_id: str, phase: HoldName, seconds: float, counts: bool = True) -> None:
        seat = self.seats[job_id]
        if self._holding is not None:
            self._holding.give(seat, phase)
        seat.group.finished(job_id, phase, seconds, counts)
        self._touched[seat.group] = None

    def sampled(self, job_id: str) -> None:
        group = self.seats[job_id].group
        group.sampled(job_id)
        self._touched[group] = None

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        seat = self.seats[job_id]
        seat.group.continued(job_id, phase, runs, sampled)
        if runs and self._holding is not None:
            self._holding.begin(seat, phase, self.now_s)

    def absent(self, job_id: str) -> None:
        seat = self.seats[job_id]
        if not seat.failed:
            if self._holding is not None:
                self._holding.withdraw(job_id)
                self._holding.give(seat, "rollout")
            seat.group.absent(job_id)
            self._touched[seat.group] = None

    def stop(self) -> None:
        self.stopped = True

    # Who is a member where.

    def place(self, job_id: str) -> Place:
        """A job takes the place that the state says."""
        self.seats[job_id] = Seat(job_id, *self._seated(job_id))
        return Place(job_id, self.seats[job_id].seating)

    def lend(self, guests: Guests) -> Iterator[Lend]:
        """Let the next jobs be profiled, if there are nodes for it."""
        settling = self._settling
        while settling is not None and (batch := guests.next(self._state, settling.nodes)) is not None:
            settling.unsettle(LEASE)
            settling.settle()
            number = guests.group
            assert number is not None
            group = self._group(number) if batch.rule is None else Dispatcher(batch.rule, number)
            for job_id, needs in batch.needs.items():
                seating = guest_seating(self._state, settling.nodes, number, needs)
                self.seats[job_id] = Seat(job_id, group, seating, guest=True)
                group.joined(job_id, () if seating.colocated else seating.rollout, 1.0, 1.0)
                yield Lend(job_id, seating)

    def vacate(self, job_id: str) -> None:
        """A job that moves has left its old place, and takes the new one."""
        seat = self.seats[job_id]
        seat.group.gone(job_id)
        self._left(seat)
        seat.moving = False
        seat.group, seat.seating = self._seated(job_id)

    def leave(self, job_id: str) -> None:
        """A job leaves its group at the end of an iteration."""
        if self._dispatch is None:
            return
        seat = self.seats.pop(job_id)
        if not seat.group.leaving(job_id):
            raise ValueError(f"job {job_id} has an iteration in hand")
        self._left(seat)

    def remove(self, job_id: str) -> Seat | None:
        """A job is no member of a group any more, at whatever it is, and holds nothing; the seat that it had."""
        seat = self.seats.pop(job_id, None)
        if seat is not None:
            seat.group.gone(job_id)
            self._left(seat)
        return seat

    def fail(self, seat: Seat) -> None:
        """Nothing is granted to a job any more; what it holds goes back when it is removed."""
        seat.failed = True
        seat.group.withdraw(seat.job_id)
        self._touched[seat.group] = None
        if self._holding is not None:
            self._holding.withdraw(seat.job_id)

    # Answers.

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

    def spans(self, job_id: str, now_s: float) -> tuple[Span, ...]:
        """What the rollout of a job has held of its nodes until now; nothing where that is all of them, all the time."""
        return self._holding.shares.spans(job_id, now_s) if self._holding is not None else ()

    def _seated(self, job_id: str) -> tuple[Dispatcher, Seating]:
        """Make a job the last member of the group that the state says."""
        seating = seating_of(self._state, self._nodes, job_id)
        group = self._group(seating.group)
        join(group, self._state, job_id, () if seating.colocated else seating.rollout, self.now_s)
        return group, seating

    def _group(self, number: int) -> Dispatcher:
        """The members of a group, or nobody yet."""
        if number not in self._groups:
            assert self._dispatch is not None
            self._groups[number] = Dispatcher(self._dispatch, number)
        return self._groups[number]

    def _left(self, seat: Seat) -> None:
        """A job is no member of its group any more: what it held is free, and its group's nodes may be others than before."""
        if self._settling is not None and self._holding is not None:
            self._settling.unsettle(seat.seating.group)
            self._holding.give_all(seat)
        self._touched[seat.group] = None
        if not seat.group.group.n:
            self._groups.pop(seat.group.number, None)
