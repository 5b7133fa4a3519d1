"""The nodes that jobs hold, by name: a permit takes nodes, the end of a phase releases them, and a tail shares them.

A job whose rollout can run on a part of its nodes reports the parts into which they are divided: its engines, each with separate
devices. Parts are numbered in the order of the report. When the dispatcher moves a tail, the tail keeps a share of the job's parts
and leaves the others. The next rollout begins on those of its parts that the tail does not hold, as soon as they have been left.
When the tail is over, that rollout gets the rest. The tail of a job that cannot run on a part never moves; the job waits for tails
on its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollmux_env.scheduler.commands import Command, Grant, Grow, Shrink
from rollmux_env.scheduler.nodes import NodePool, NodeShareSpan, PoolNode
from rollmux_env.scheduler.seats import Seat
from rollmux_env.scheduler.view import ALL_NODES, HoldName, Permit
from rollmux_env.timing.tail import Migration

Seats = Mapping[str, Seat]
Numbers = tuple[int, ...]
"""Numbers of some of a rollout's parts, ascending."""


@dataclass
class _Use:
    """The parts of its nodes that a rollout uses, by number."""

    nodes: tuple[PoolNode, ...]
    parts: tuple[PoolNode, ...]
    holds: Numbers  # parts whose devices it holds
    wants: Numbers  # parts that it may keep; fewer than it holds while it still has to leave some
    tail: bool = False
    history: list[tuple[float, Numbers, bool]] = field(default_factory=list)  # (start, held parts, whether as a tail)

    @property
    def leaving(self) -> bool:
        """Whether it is a tail that still holds parts that it has to leave."""
        return not set(self.holds) <= set(self.wants)

    def own_parts(self) -> list[PoolNode]:
        return [self.parts[k] for k in self.holds]


class HeldParts:
    """The parts of nodes that rollouts hold.

    Args:
        nodes: Nodes whose devices are taken and given back.
        migration: Share that tails keep, or None if tails do not migrate.
    """

    def __init__(self, nodes: NodePool, migration: Migration | None) -> None:
        self._nodes, self._migration = nodes, migration
        self._uses: dict[str, _Use] = {}

    def begin(self, job_id: str, nodes: tuple[PoolNode, ...], parts: tuple[PoolNode, ...], now_s: float) -> bool | None:
        """Begin a rollout.

        Args:
            job_id: Identifier of the job.
            nodes: Nodes of the rollout.
            parts: Parts into which its nodes are divided, or empty if it needs all nodes.
            now_s: Current time, in seconds.

        Returns:
            Whether one of its nodes last ran another job, or None if it has to wait for a tail.
        """
        free = self._free(nodes, parts or nodes)
        if free is None or not free or (not parts and len(free) < len(nodes)):
            return None
        use = self._uses[job_id] = _Use(nodes, parts or nodes, free, free)
        use.history.append((now_s, free, False))
        return self._nodes.occupy(job_id, use.own_parts())

    def migrate(self, job_id: str, wanted: Collection[str]) -> Numbers:
        """Make a tail leave its nodes except for a share.

        Args:
            job_id: Identifier of the job.
            wanted: Names of the nodes that the next rollouts need; the tail prefers to keep other nodes.

        Returns:
            Numbers of the parts that the tail keeps.
        """
        assert self._migration is not None
        use = self._uses[job_id]
        use.tail = True
        use.wants = kept_parts(use.parts, wanted, self._migration)
        return use.wants

    def parts(self, job_id: str) -> Numbers:
        """Return the numbers of the parts that a rollout uses from now on."""
        return self._uses[job_id].wants

    def left(self, job_id: str, now_s: float) -> None:
        """Release the parts that a tail had to leave and has left."""
        use = self._uses[job_id]
        if use.leaving:
            self._nodes.release(job_id, [use.parts[k] for k in use.holds if k not in use.wants])
            use.holds = use.wants
            use.history.append((now_s, use.holds, use.tail))

    def grow(self, now_s: float) -> list[str]:
        """Give rollouts the parts that tails have left, and return the ids of the rollouts that have more now."""
        grown = []
        for job_id, use in self._uses.items():
            free = None if use.tail or len(use.holds) == len(use.parts) else self._free(use.nodes, use.parts)
            if free is not None and len(free) > len(use.holds):
                self._nodes.occupy(job_id, [use.parts[k] for k in free if k not in use.holds])
                use.holds = use.wants = free
                use.history.append((now_s, free, False))
                grown.append(job_id)
        return grown

    def end(self, job_id: str) -> None:
        """End a rollout and release its devices."""
        self._nodes.release(job_id, self._uses.pop(job_id).own_parts())

    def spans(self, job_id: str, now_s: float) -> tuple[NodeShareSpan, ...]:
        """Return the shares of its nodes that a rollout has held over time; empty if it held all of them throughout."""
        use = self._uses[job_id]
        if len(use.history) == 1 and len(use.holds) == len(use.parts):
            return ()
        spans = []
        for (from_s, holds, tail), until_s in zip(use.history, [at_s for at_s, _, _ in use.history[1:]] + [now_s], strict=True):
            for node in use.nodes:
                mine = sum(len(use.parts[k].devices) for k in holds if use.parts[k].name == node.name)
                if mine and from_s < until_s:
                    spans.append(NodeShareSpan(node.name, from_s, until_s, mine / len(node.devices), tail))
        return tuple(spans)

    def _free(self, nodes: tuple[PoolNode, ...], parts: Sequence[PoolNode]) -> Numbers | None:
        """Return the numbers of the parts that no tail holds, or None if a tail still has to leave some of them."""
        names = {node.name for node in nodes}
        taken: set[tuple[str, int | str]] = set()
        for use in self._uses.values():
            if use.tail and names & {node.name for node in use.nodes}:
                if use.leaving:
                    return None
                taken |= {(part.name, device) for part in use.own_parts() for device in part.devices}
        return tuple(k for k, part in enumerate(parts) if not any((part.name, device) in taken for device in part.devices))


def kept_parts(parts: Sequence[PoolNode], wanted: Collection[str], migration: Migration) -> Numbers:
    """Return the numbers of the parts that a tail keeps: its share, equally from each node if possible.

    Parts of nodes that are not wanted come first.

    Args:
        parts: Parts into which the nodes of the rollout are divided.
        wanted: Names of the nodes that the next rollouts need.
        migration: Share that a tail keeps.
    """
    count: dict[str, int] = {}
    order = []
    for number, part in enumerate(parts):
        count[part.name] = count.get(part.name, 0) + 1
        order.append((count[part.name], part.name in wanted, number))
    return tuple(sorted(number for _, _, number in sorted(order)[: migration.keeps(len(parts))]))


class Holding:
    """The nodes that jobs hold.

    Args:
        nodes: Nodes by name.
        migration: Share that tails keep, or None if tails do not migrate.

    Attributes:
        shares: The parts of nodes that rollouts hold.
    """

    def __init__(self, nodes: NodePool, migration: Migration | None = None) -> None:
        self.shares = HeldParts(nodes, migration)
        self._nodes = nodes
        self._delayed: dict[str, bool] = {}  # rollouts whose permits wait for a tail, and whether their permit was paired
        self._room = False  # whether nodes were released since the last `make_room`

    def grants(self, permits: list[Permit], migrations: Iterable[str], seats: Seats, now_s: float) -> list[Command]:
        """Return the commands for the permits of a group: tails shrink, and phases begin.

        A rollout whose nodes a tail still has to leave begins later, by `make_room`.

        Args:
            permits: Permits that the group's dispatcher has just given.
            migrations: Identifiers of the jobs whose tails have to migrate.
            seats: Seats by job.
            now_s: Current time, in seconds.
        """
        wanted = {node.name for job_id, phase in permits if phase == "rollout" for node in seats[job_id].seating.rollout_nodes}
        commands: list[Command] = [Shrink(job_id, self.shares.migrate(job_id, wanted)) for job_id in migrations]
        for job_id, phase in permits:
            commands += self._grant(seats[job_id], phase, len(permits) > 1, now_s)
        return commands

    def begin(self, seat: Seat, phase: HoldName, now_s: float) -> None:
        """Take the nodes of a phase that already runs, such as one that continues after a restart of the scheduler."""
        self._grant(seat, phase, False, now_s)

    def _grant(self, seat: Seat, phase: HoldName, paired: bool, now_s: float) -> list[Command]:
        job_id, seating = seat.job_id, seat.seating
        parts: tuple[int, ...] = ()
        if phase != "rollout":
            switched = self._nodes.occupy(job_id, seating.training_nodes if phase == "training" else seat.every_node())
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
        """Record that a tail has left the parts that it had to leave."""
        self.shares.left(job_id, now_s)
        self._room = True

    def release(self, seat: Seat, phase: HoldName) -> None:
        """Release the nodes of a phase that is over, if the job holds any."""
        if phase not in seat.holds:
            return
        seat.holds.remove(phase)
        if phase == "training":
            self._nodes.release(seat.job_id, seat.seating.training_nodes)
        elif phase in ALL_NODES:
            self._nodes.release(seat.job_id, seat.every_node())
        else:
            self.shares.end(seat.job_id)
            self._room = True

    def release_all(self, seat: Seat) -> None:
        """Release everything that a job holds, and its waiting rollout."""
        self.withdraw(seat.job_id)
        for phase in [*seat.holds]:
            self.release(seat, phase)

    def withdraw(self, job_id: str) -> None:
        """Forget the permit of a job's rollout that waits for a tail."""
        self._delayed.pop(job_id, None)

    def make_room(self, seats: Seats, now_s: float) -> list[Command]:
        """Return the commands that follow when tails have left nodes: rollouts beside them grow, and waiting rollouts begin."""
        if not self._room:
            return []
        self._room = False
        commands: list[Command] = [Grow(job_id, self.shares.parts(job_id)) for job_id in self.shares.grow(now_s)]
        delayed, self._delayed = self._delayed, {}
        for job_id, paired in delayed.items():
            commands += self._grant(seats[job_id], "rollout", paired, now_s)
        return commands
