"""Which parts of their nodes rollouts use while migrated tails share them.

A job whose rollout can do with a part of its nodes says what these are cut into: its engines, each with devices of its own. The
dispatcher decides that a tail moves. Here is what follows from it: the tail keeps a share of the job's parts and leaves the others;
the next rollout begins, on those of its own parts that the tail does not hold, as soon as they have been left; and when the tail is
over, it gets the rest. A job that cannot do with a part is never asked for its tail, and waits for those that are in its way.

No clock, no input or output: the coordinator reports and asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import ceil

from rollmux_env.timing.tail import TailModel
from runtime.execution.ground import Ground
from runtime.facts import Node, Span

Numbers = tuple[int, ...]


@dataclass
class _Use:
    """What a rollout uses of its nodes: numbers of its parts."""

    nodes: tuple[Node, ...]
    parts: tuple[Node, ...]
    holds: Numbers  # the devices are its own
    wants: Numbers  # what it is to use
    told: Numbers  # what its job knows of
    tail: bool = False
    history: list[tuple[float, Numbers, bool]] = field(default_factory=list)  # since when it holds what, and whether as a tail

    @property
    def leaving(self) -> bool:
        """It is a tail that still holds what it is to leave."""
        return not set(self.holds) <= set(self.wants)

    def held(self) -> list[Node]:
        return [self.parts[k] for k in self.holds]


class Tails:
    """The rollouts of a run that hold nodes.

    Args:
        ground: where their devices are taken and given back.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._uses: dict[str, _Use] = {}

    def begin(self, job_id: str, nodes: tuple[Node, ...], parts: tuple[Node, ...], now_s: float) -> bool | None:
        """A rollout is to begin.

        Args:
            parts: what its nodes are cut into; nothing of a job that needs all of them.

        Returns:
            Whether one of its nodes last ran another job; None: it has to wait for a tail.
        """
        free = self._free(nodes, parts or nodes)
        if free is None or not free or (not parts and len(free) < len(nodes)):
            return None
        use = self._uses[job_id] = _Use(nodes, parts or nodes, free, free, free)
        use.history.append((now_s, free, False))
        return self._ground.take(job_id, use.held())

    def migrate(self, job_id: str, wanted: Collection[str]) -> None:
        """A tail is to leave its nodes but for a share.

        Args:
            wanted: names of the nodes that the next rollouts need; the others come first among those that the tail keeps.
        """
        use = self._uses[job_id]
        use.tail = True
        use.wants = kept(use.parts, wanted)

    def parts(self, job_id: str) -> Numbers:
        """The parts that a rollout is to use from now on; its job has asked."""
        use = self._uses[job_id]
        use.told = use.wants
        return use.wants

    def left(self, job_id: str, now_s: float) -> None:
        """It has left all others."""
        use = self._uses[job_id]
        if use.leaving:
            self._ground.give(job_id, [use.parts[k] for k in use.holds if k not in use.wants])
            use.holds = use.wants
            use.history.append((now_s, use.holds, use.tail))

    def grow(self, now_s: float) -> list[str]:
        """Give rollouts the parts that tails have left them meanwhile; ids of those whose jobs are to be told."""
        grown = []
        for job_id, use in self._uses.items():
            free = None if use.tail or len(use.holds) == len(use.parts) else self._free(use.nodes, use.parts)
            if free is not None and len(free) > len(use.holds):
                self._ground.take(job_id, [use.parts[k] for k in free if k not in use.holds])
                use.holds = use.wants = free
                use.history.append((now_s, free, False))
                grown.append(job_id)
        return grown

    def end(self, job_id: str) -> None:
        """A rollout is over, and its devices are free."""
        self._ground.give(job_id, self._uses.pop(job_id).held())

    def changed(self, job_id: str) -> bool:
        """A rollout runs and is to use other parts than its job knows of."""
        return job_id in self._uses and self._uses[job_id].wants != self._uses[job_id].told

    def spans(self, job_id: str, now_s: float) -> tuple[Span, ...]:
        """What a rollout has held of its nodes and when (see `runtime.facts.PhaseSlice`)."""
        use = self._uses[job_id]
        if len(use.history) == 1 and len(use.holds) == len(use.parts):
            return ()
        spans = []
        for (from_s, holds, tail), until_s in zip(use.history, [at_s for at_s, _, _ in use.history[1:]] + [now_s], strict=True):
            for node in use.nodes:
                mine = sum(len(devices(use.parts[k])) for k in holds if use.parts[k].name == node.name)
                if mine and from_s < until_s:
                    spans.append(Span(node.name, from_s, until_s, mine / len(devices(node)), tail))
        return tuple(spans)

    def _free(self, nodes: tuple[Node, ...], parts: Sequence[Node]) -> Numbers | None:
        """Which parts no tail holds; None: a tail is about to leave some of them."""
        names = {node.name for node in nodes}
        taken: set[tuple[str, int]] = set()
        for use in self._uses.values():
            if use.tail and names & {node.name for node in use.nodes}:
                if use.leaving:
                    return None
                taken |= {(part.name, device) for part in use.held() for device in devices(part)}
        return tuple(k for k, part in enumerate(parts) if not any((part.name, device) in taken for device in devices(part)))


def kept(parts: Sequence[Node], wanted: Collection[str]) -> Numbers:
    """Which parts a tail keeps: a share of them, the same of each node if that goes, else rather of nodes that nobody waits for."""
    seen: dict[str, int] = {}
    order = []
    for number, part in enumerate(parts):
        seen[part.name] = seen.get(part.name, 0) + 1
        order.append((seen[part.name], part.name in wanted, number))
    return tuple(sorted(number for _, _, number in sorted(order)[: ceil(TailModel.share * len(parts))]))


def devices(node: Node) -> tuple[int, ...]:
    """What of a node, or of a part of one, a process computes on: its GPUs, or its cores where it has none."""
    return node.gpus or node.cores
