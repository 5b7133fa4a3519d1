"""Who holds which nodes by name: permits take them, ends of phases give them back, and tails share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollmux_env.scheduler.commands import Command, Grant, Grow, Shrink
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.scheduler.seats import Seat
from rollmux_env.scheduler.shares import Shares
from rollmux_env.scheduler.view import HoldName, Permit
from rollmux_env.timing.tail import Migration

Seats = Mapping[str, Seat]


class Holding:
    """The nodes in jobs' hands.

    Args:
        nodes: of which they are. migration: what tails keep; None where none move.

    Attributes:
        shares: the parts of nodes that rollouts have.
    """

    def __init__(self, nodes: NodePool, migration: Migration | None = None) -> None:
        self.shares = Shares(nodes, migration)
        self._nodes = nodes
        self._delayed: dict[str, bool] = {}  # rollouts whose permits wait for a tail, and whether another one was given then
        self._room = False  # nodes have been left since somebody looked

    def grants(self, permits: list[Permit], migrations: Iterable[str], seats: Seats, now_s: float) -> list[Command]:
        """What the permits of a group mean for its nodes: tails shrink, and phases begin as far as nothing is in their way."""
        wanted = {node.name for job_id, phase in permits if phase == "rollout" for node in seats[job_id].seating.rollout_nodes}
        commands: list[Command] = [Shrink(job_id, self.shares.migrate(job_id, wanted)) for job_id in migrations]
        for job_id, phase in permits:
            commands += self._grant(seats[job_id], phase, len(permits) > 1, now_s)
        return commands

    def begin(self, seat: Seat, phase: HoldName, now_s: float) -> None:
        """A job has these nodes already."""
        self._grant(seat, phase, False, now_s)

    def _grant(self, seat: Seat, phase: HoldName, paired: bool, now_s: float) -> list[Command]:
        job_id, seating = seat.job_id, seat.seating
        parts: tuple[int, ...] = ()
        if phase != "rollout":
            switched = self._nodes.take(job_id, seating.training_nodes if phase == "training" else seat.every_node())
        else:
            begun = self.shares.begin(job_id, seating.rollout_nodes, seat.parts, now_s)
            if begun is None:
                self._delayed[job_id] = paired
                return []
            switched = begun
            parts = self.shares.parts(job_id) if seat.parts else ()
        seat.holds.add(phase)
        return [Grant(job_id, phase, parts, switched, paired)]

    def shrunk(self, job_id: str, now_s: float) -> None:
        """A tail has left what it was to leave."""
        self.shares.left(job_id, now_s)
        self._room = True

    def give(self, seat: Seat, phase: HoldName) -> None:
        """A phase is over, if a job holds nodes for it, and they are free."""
        if phase not in seat.holds:
            return
        seat.holds.remove(phase)
        if phase == "training":
            self._nodes.give(seat.job_id, seat.seating.training_nodes)
        elif phase == "sync":
            self._nodes.give(seat.job_id, seat.every_node())
        else:
            self.shares.end(seat.job_id)
            self._room = True

    def give_all(self, seat: Seat) -> None:
        """What a job holds is free, and it waits for nothing."""
        self.withdraw(seat.job_id)
        for phase in [*seat.holds]:
            self.give(seat, phase)

    def withdraw(self, job_id: str) -> None:
        """A job waits for no tail any more."""
        self._delayed.pop(job_id, None)

    def make_room(self, seats: Seats, now_s: float) -> list[Command]:
        """Where tails have left nodes: rollouts beside them get more of theirs, and those that have waited for them begin."""
        if not self._room:
            return []
        self._room = False
        commands: list[Command] = [Grow(job_id, self.shares.parts(job_id)) for job_id in self.shares.grow(now_s)]
        delayed, self._delayed = self._delayed, {}
        for job_id, paired in delayed.items():
            commands += self._grant(seats[job_id], "rollout", paired, now_s)
        return commands
