"""The nodes of a run: which group's they are, and who runs on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rollmux_env.errors import InvariantError
from runtime.facts import Assigned, Node, Pool, Returned

Place = tuple[int, Pool, int]  # group, pool, number of the node within the group


class Ground:
    """Assigns nodes to the places that groups have, and knows who holds each.

    Args:
        nodes: all there are.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._assigned: dict[Place, Node] = {}
        self._holders: dict[tuple[str, int], str] = {}  # by node and device, a GPU or a core
        self._last: dict[str, str] = {}

    def free(self, pool: Pool) -> list[Node]:
        """Nodes that are no group's."""
        taken = {node.name for node in self._assigned.values()}
        return [node for node in self._nodes.values() if node.pool == pool and node.name not in taken]

    def nodes(self, pool: Pool) -> list[Node]:
        """All that are there."""
        return [node for node in self._nodes.values() if node.pool == pool]

    def machines(self) -> set[str]:
        """Those that the nodes are parts of."""
        return {node.machine for node in self._nodes.values()}

    def lose(self, machines: Collection[str], now_s: float) -> list[Returned]:
        """Machines are no longer there, and so are no group's."""
        lost = {name for name, node in self._nodes.items() if node.machine in machines}
        self._nodes = {name: node for name, node in self._nodes.items() if name not in lost}
        places = [place for place, node in self._assigned.items() if node.name in lost]
        return [Returned(now_s, self._assigned.pop(place).name) for place in places]

    def remember(self, facts: Iterable[Assigned | Returned]) -> None:
        """Take up what an earlier ground did, as far as its nodes are there by name."""
        for fact in facts:
            if isinstance(fact, Returned):
                self._assigned = {place: node for place, node in self._assigned.items() if node.name != fact.node}
            elif fact.node in self._nodes:
                self._assigned[fact.group, fact.pool, fact.number] = self._nodes[fact.node]

    def node(self, group: int, pool: Pool, number: int) -> Node:
        """The node of a place that has one."""
        return self._assigned[group, pool, number]

    def settle(self, wanted: Iterable[Place], used: Collection[str], now_s: float) -> list[Assigned | Returned]:
        """Give every wanted place a node, and take back those of places that nobody wants, unless a job still uses the node.

        Raises:
            InvariantError: there are more places than nodes.
        """
        places = sorted(set(wanted))
        facts: list[Assigned | Returned] = []
        for place, node in [*self._assigned.items()]:
            if place not in places and node.name not in used:
                del self._assigned[place]
                facts.append(Returned(now_s, node.name))
        for place in places:
            if place in self._assigned:
                continue
            group, pool, number = place
            free = self.free(pool)
            if not free:
                raise InvariantError(f"R5: there is no {pool} node left for group {group}")
            self._assigned[place] = free[0]
            facts.append(Assigned(now_s, group, pool, number, free[0].name))
        return facts

    def take(self, job_id: str, nodes: Sequence[Node]) -> bool:
        """A job holds nodes, or parts of nodes, from now on; whether one of them last ran another job.

        Raises:
            InvariantError: a device of one is held already.
        """
        wanted = [(node.name, device) for node in nodes for device in node.gpus or node.cores]
        for place in wanted:
            if place in self._holders:
                raise InvariantError(f"R3: {place[0]} is given to {job_id} while {self._holders[place]} runs on it")
        switched = any(self._last.get(node.name, job_id) != job_id for node in nodes)
        self._holders.update(dict.fromkeys(wanted, job_id))
        self._last.update({node.name: job_id for node in nodes})
        return switched

    def give(self, job_id: str, nodes: Sequence[Node]) -> None:
        """A job holds nodes, or parts of nodes, no longer.

        Raises:
            InvariantError: it did not.
        """
        for node in nodes:
            for device in node.gpus or node.cores:
                if self._holders.get((node.name, device)) != job_id:
                    raise InvariantError(f"R3: {job_id} gives {node.name} back, which it does not hold")
                del self._holders[node.name, device]

    def holders(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Ids of the jobs that hold any of these nodes."""
        names = {node.name for node in nodes}
        return tuple(sorted({job_id for (name, _), job_id in self._holders.items() if name in names}))
