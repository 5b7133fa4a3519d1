"""Which parts of their nodes rollouts use while migrated tails share them.

A job whose rollout can do with a part of its nodes says what these are cut into: its engines, each with devices of its own. The
dispatcher decides that a tail moves. Here is what follows from it: the tail keeps a share of the job's parts and leaves the others;
the next rollout begins, on those of its own parts that the tail does not hold, as soon as they have been left; and when the tail is
over, it gets the rest. A job that cannot do with a part is never asked for its tail, and waits for those that are in its way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from rollmux_env.scheduler.nodes import NodePool, PoolNode
from rollmux_env.timing.tail import Migration

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """What a rollout held of a node for a time, where that was not all of it, or not all the time.

    Attributes:
        node: its name. share: of the node. tail: it is what was left of the rollout, migrated.
    """

    node: str
    from_s: float
    until_s: float
    share: float
    tail: bool


@dataclass
class _Use:
    """What a rollout uses of its nodes: numbers of its parts."""

    nodes: tuple[PoolNode, ...]
    parts: tuple[PoolNode, ...]
    holds: Numbers  # the devices are its own
    wants: Numbers  # what it is to use
    tail: bool = False
    history: list[tuple[float, Numbers, bool]] = field(default_factory=list)  # since when it holds what, and whether as a tail

    @property
    def leaving(self) -> bool:
        """It is a tail that still holds what it is to leave."""
        return not set(self.holds) <= set(self.wants)

    def own_parts(self) -> list[PoolNode]:
        return [self.parts[k] for k in self.holds]


class Shares:
    """The rollouts that hold nodes.

    Args:
        nodes: where their devices are taken and given back. migration: what tails keep; None where none move.
    """

    def __init__(self, nodes: NodePool, migration: Migration | None) -> None:
        self._nodes, self._migration = nodes, migration
        self._uses: dict[str, _Use] = {}

    def begin(self, job_id: str, nodes: tuple[PoolNode, ...], parts: tuple[PoolNode, ...], now_s: float) -> bool | None:
        """A rollout is to begin.

        Args:
            parts: what its nodes are cut into; nothing of a job that needs all of them.

        Returns:
            Whether one of its nodes last ran another job; None: it has to wait for a tail.
        """
        free = self._free(nodes, parts or nodes)
        if free is None or not free or (not parts and len(free) < len(nodes)):
            return None
        use = self._uses[job_id] = _Use(nodes, parts or nodes, free, free)
        use.history.append((now_s, free, False))
        return self._nodes.take(job_id, use.own_parts())

    def migrate(self, job_id: str, wanted: Collection[str]) -> Numbers:
        """A tail is to leave its nodes but for a share; returns the parts that it keeps.

        Args:
            wanted: names of the nodes that the next rollouts need; the others come first among those that the tail keeps.
        """
        assert self._migration is not None
        use = self._uses[job_id]
        use.tail = True
        use.wants = kept_parts(use.parts, wanted, self._migration)
        return use.wants

    def parts(self, job_id: str) -> Numbers:
        """The parts that a rollout is to use from now on."""
        return self._uses[job_id].wants

    def left(self, job_id: str, now_s: float) -> None:
        """It uses no others any more."""
        use = self._uses[job_id]
        if use.leaving:
            self._nodes.give(job_id, [use.parts[k] for k in use.holds if k not in use.wants])
            use.holds = use.wants
            use.history.append((now_s, use.holds, use.tail))

    def grow(self, now_s: float) -> list[str]:
        """Give rollouts the parts that tails have left them meanwhile; ids of those that have more now."""
        grown = []
        for job_id, use in self._uses.items():
            free = None if use.tail or len(use.holds) == len(use.parts) else self._free(use.nodes, use.parts)
            if free is not None and len(free) > len(use.holds):
                self._nodes.take(job_id, [use.parts[k] for k in free if k not in use.holds])
                use.holds = use.wants = free
                use.history.append((now_s, free, False))
                grown.append(job_id)
        return grown

    def end(self, job_id: str) -> None:
        """A rollout is over, and its devices are free."""
        self._nodes.give(job_id, self._uses.pop(job_id).own_parts())

    def spans(self, job_id: str, now_s: float) -> tuple[Span, ...]:
        """What a rollout has held of its nodes and when; nothing where that is all of them, all the time."""
        use = self._uses[job_id]
        if len(use.history) == 1 and len(use.holds) == len(use.parts):
            return ()
        spans = []
        for (from_s, holds, tail), until_s in zip(use.history, [at_s for at_s, _, _ in use.history[1:]] + [now_s], strict=True):
            for node in use.nodes:
                mine = sum(len(use.parts[k].devices) for k in holds if use.parts[k].name == node.name)
                if mine and from_s < until_s:
                    spans.append(Span(node.name, from_s, until_s, mine / len(node.devices), tail))
        return tuple(spans)

    def _free(self, nodes: tuple[PoolNode, ...], parts: Sequence[PoolNode]) -> Numbers | None:
        """Which parts no tail holds; None: a tail is about to leave some of them."""
        names = {node.name for node in nodes}
        taken: set[tuple[str, int]] = set()
        for use in self._uses.values():
            if use.tail and names & {node.name for node in use.nodes}:
                if use.leaving:
                    return None
                taken |= {(part.name, device) for part in use.own_parts() for device in part.devices}
        return tuple(k for k, part in enumerate(parts) if not any((part.name, device) in taken for device in part.devices))


def kept_parts(parts: Sequence[PoolNode], wanted: Collection[str], migration: Migration) -> Numbers:
    """Which parts a tail keeps: its share, the same of each node if that goes, else rather of nodes that nobody waits for."""
    count: dict[str, int] = {}
    order = []
    for number, part in enumerate(parts):
        count[part.name] = count.get(part.name, 0) + 1
        order.append((count[part.name], part.name in wanted, number))
    return tuple(sorted(number for _, _, number in sorted(order)[: migration.keeps(len(parts))]))
