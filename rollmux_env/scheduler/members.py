"""The members of groups: the phases that they report, the permits that they get, and the nodes that they hold.

The dispatcher of a group handles the effect of a phase on the group, and `Holding` its effect on named nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.commands import Command, Grant, Lend, Seating, Shrink, StartJob, Vacate
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.guests import Guests
from rollmux_env.scheduler.holding import Holding
from rollmux_env.scheduler.nodes import PROFILING_GROUP, NodeShareSpan, PoolNode
from rollmux_env.scheduler.seats import Seat, guest_seating, join, seating_of
from rollmux_env.scheduler.settling import Settling
from rollmux_env.scheduler.view import DispatchPolicy, HoldName
from rollmux_env.timing.tail import migration_of


class Members:
    """Jobs in groups and guests. Each method under "Facts" receives the fact of its name.

    Args:
        state: State of the cluster.
        dispatch: Dispatch policy, or None if there are no phases and so no seats (the fluid replay).
        settling: Named nodes, or None.
        seats: Seats of jobs by id, shared with `settling`.

    Attributes:
        seats: Seats of jobs by id.
        migration: When `threshold` is reported for a rollout, and how much its tail keeps, or None if tails do not migrate.
        now_s: Time of the last instant, in seconds.
        stopped: Whether the run stops, so that no phase may begin.
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
        """Queue a phase that could run."""
        seat = self.seats[job_id]
        if seat.failed:
            return
        if phase == "rollout":
            seat.parts = parts
        seat.group.ready(job_id, phase)
        self._touched[seat.group] = None

    def threshold(self, job_id: str) -> None:
        """Allow the tail of a rollout to migrate."""
        seat = self.seats[job_id]
        if not seat.failed and (self._holding is None or len(seat.parts) > 1):
            seat.group.threshold(job_id)
            self._touched[seat.group] = None

    def shrunk(self, job_id: str) -> None:
        """Release the parts that a tail has left."""
        assert self._holding is not None
        self._holding.shrunk(job_id, self.now_s)

    def finished(self, job_id: str, phase: HoldName, seconds: float, counts: bool = True) -> None:
        """End a phase and release its nodes."""
        seat = self.seats[job_id]
        if self._holding is not None:
            self._holding.release(seat, phase)
        seat.group.finished(job_id, phase, seconds, counts)
        self._touched[seat.group] = None

    def sampled(self, job_id: str) -> None:
        """Skip further rollouts of a stale job."""
        group = self.seats[job_id].group
        group.sampled(job_id)
        self._touched[group] = None

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        """Record an unfinished iteration of a job that had a place before."""
        seat = self.seats[job_id]
        seat.group.continued(job_id, phase, runs, sampled)
        if runs and self._holding is not None:
            self._holding.begin(seat, phase, self.now_s)

    def absent(self, job_id: str) -> None:
        """Let other members pass a job that is absent between two iterations."""
        seat = self.seats[job_id]
        if not seat.failed:
            if self._holding is not None:
                self._holding.withdraw(job_id)
                self._holding.release(seat, "rollout")
            seat.group.absent(job_id)
            self._touched[seat.group] = None

    def requests_withdrawn(self, job_id: str) -> None:
        """Withdraw a member's requests for permits. Unless it holds a phase, it is then absent, also within an iteration."""
        seat = self.seats[job_id]
        if seat.failed:
            return
        if self._holding is not None:
            self._holding.withdraw(job_id)
        seat.group.withdraw(job_id)
        if not seat.holds:
            seat.group.drop_iteration(job_id)
        self._touched[seat.group] = None

    def stop(self) -> None:
        """Stop giving permits."""
        self.stopped = True

    # Membership.

    def place(self, job_id: str) -> StartJob:
        """Give a job the place that the state says."""
        self.seats[job_id] = Seat(job_id, *self._seat_job(job_id))
        return StartJob(job_id, self.seats[job_id].seating)

    def stay(self, job_id: str, seating: Seating) -> tuple[StartJob, Vacate]:
        """Give a moving job the place that it has not left yet."""
        seat = self.seats[job_id] = Seat(job_id, self._join(job_id, seating), seating)
        seat.moving = True
        return StartJob(job_id, seating), Vacate(job_id)

    def lend(self, guests: Guests) -> Iterator[Lend]:
        """Let the next jobs be profiled, if there are nodes for them."""
        settling = self._settling
        while settling is not None and (batch := guests.next(self._state, settling.nodes)) is not None:
            settling.mark_unsettled(PROFILING_GROUP)
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
        """Let a moving job leave its old place and take the new one."""
        seat = self.seats[job_id]
        seat.group.gone(job_id)
        self._release_seat(seat)
        seat.moving = False
        seat.group, seat.seating = self._seat_job(job_id)

    def leave(self, job_id: str) -> None:
        """Remove a job from its group at the end of an iteration.

        Raises:
            ValueError: If the job has an unfinished iteration.
        """
        if self._dispatch is None:
            return
        seat = self.seats.pop(job_id)
        if not seat.group.leaving(job_id):
            raise ValueError(f"job {job_id} has an unfinished iteration")
        self._release_seat(seat)

    def remove(self, job_id: str) -> Seat | None:
        """Remove a job from its group, whatever it is running, and release what it holds.

        Returns:
            Seat of the job, or None if it had none.
        """
        seat = self.seats.pop(job_id, None)
        if seat is not None:
            seat.group.gone(job_id)
            self._release_seat(seat)
        return seat

    def fail(self, seat: Seat) -> None:
        """Give a job no more permits. What it holds is released when it is removed."""
        seat.failed = True
        seat.group.withdraw(seat.job_id)
        self._touched[seat.group] = None
        if self._holding is not None:
            self._holding.withdraw(seat.job_id)

    # Permits.

    def permits(self, now_s: float) -> list[Command]:
        """Return the commands of the permits that are due, group by group."""
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

    def spans(self, job_id: str, now_s: float) -> tuple[NodeShareSpan, ...]:
        """Return the shares of its nodes that a job's rollout has held until now; empty if it held all of them throughout."""
        return self._holding.shares.spans(job_id, now_s) if self._holding is not None else ()

    def _seat_job(self, job_id: str) -> tuple[Dispatcher, Seating]:
        """Make a job the last member of the group that the state says."""
        seating = seating_of(self._state, self._nodes, job_id)
        return self._join(job_id, seating), seating

    def _join(self, job_id: str, seating: Seating) -> Dispatcher:
        """Make a job the last member of the group of its nodes."""
        group = self._group(seating.group)
        join(group, self._state, job_id, () if seating.colocated else seating.rollout, self.now_s)
        return group

    def _group(self, number: int) -> Dispatcher:
        """Return the dispatcher of a group, new if there is none yet."""
        if number not in self._groups:
            assert self._dispatch is not None
            self._groups[number] = Dispatcher(self._dispatch, number)
        return self._groups[number]

    def _release_seat(self, seat: Seat) -> None:
        """Release what a job held in the group that it left. The nodes of the group may change."""
        if self._settling is not None and self._holding is not None:
            self._settling.mark_unsettled(seat.seating.group)
            self._holding.release_all(seat)
        self._touched[seat.group] = None
        if not seat.group.group.n:
            self._groups.pop(seat.group.number, None)
