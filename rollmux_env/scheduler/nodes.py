"""The nodes of a cluster by name: which place of which group each one has, and which job holds which of its devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rollmux_env.errors import InvariantError

PoolName = Literal["rollout", "training"]
Place = tuple[int, PoolName, int]  # group, pool, number of the node within the group
LEASE = -1  # in place of a group's number: nodes of no group, lent to jobs that are being profiled


class PoolNode(Protocol):
    """What the scheduler knows of a node, or of a part of one. A driver's nodes may have more."""

    @property
    def name(self) -> str:
        """Unique; a part has the name of its node."""
        ...

    @property
    def pool(self) -> PoolName: ...

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of what it computes on, at least one: GPUs, or cores where there are none."""
        ...


@dataclass(frozen=True)
class Assigned:
    """A group's node is this one from now on, until the group gives it back.

    Attributes:
        group: id, or `LEASE`. number: the node's within the group. node: its name.
    """

    at_s: float
    group: int
    pool: PoolName
    number: int
    node: str


@dataclass(frozen=True)
class Returned:
    """A node is free again."""

    at_s: float
    node: str


class NodePool:
    """Assigns nodes to the places that groups have, and knows who holds each.

    Args:
        nodes: all there are.

    Attributes:
        drained: names of nodes that get no places any more, whether they are there or not.
    """

    def __init__(self, nodes: Iterable[PoolNode]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self.drained: set[str] = set()
        self._assigned: dict[Place, PoolNode] = {}
        self._holders: dict[tuple[str, int], str] = {}  # by node and device
        self._last: dict[str, str] = {}

    def nodes(self, pool: PoolName) -> list[PoolNode]:
        """All that are there."""
        return [node for node in self._nodes.values() if node.pool == pool]

    def free(self, pool: PoolName) -> list[PoolNode]:
        """Nodes that no place has, and that are not drained."""
        assigned = {node.name for node in self._assigned.values()}
        return [node for node in self.nodes(pool) if node.name not in assigned and node.name not in self.drained]

    def in_service(self, pool: PoolName) -> int:
        """How many nodes there are, without those that are drained and that no place has any more."""
        idle = self.drained - {node.name for node in self._assigned.values()}
        return sum(node.name not in idle for node in self.nodes(pool))

    def drained_groups(self) -> set[int]:
        """Groups that have a drained node."""
        return {group for (group, _, _), node in self._assigned.items() if node.name in self.drained} if self.drained else set()

    def node(self, group: int, pool: PoolName, number: int) -> PoolNode:
        """The node of a place that has one."""
        return self._assigned[group, pool, number]

    def assigned(self, group: int) -> list[str]:
        """Names of a group's nodes, rollout nodes first."""
        return self.assigned_by_group().get(group, [])

    def assigned_by_group(self) -> dict[int, list[str]]:
        """Names of the nodes of every group, rollout nodes first."""
        names: dict[int, list[str]] = {}
        for place in sorted(self._assigned):
            names.setdefault(place[0], []).append(self._assigned[place].name)
        return names

    def lose(self, names: Collection[str], now_s: float) -> list[Returned]:
        """Nodes are no longer there, and so no place has them."""
        self._nodes = {name: node for name, node in self._nodes.items() if name not in names}
        places = [place for place, node in self._assigned.items() if node.name in names]
        return [Returned(now_s, self._assigned.pop(place).name) for place in places]

    def add(self, nodes: Iterable[PoolNode]) -> None:
        """More nodes are there."""
        self._nodes |= {node.name: node for node in nodes}

    def restore(self, entries: Iterable[Assigned | Returned]) -> None:
        """Repeat the assignments of an earlier pool, as far as its nodes are there by name."""
        for entry in entries:
            if isinstance(entry, Returned):
                self._assigned = {place: node for place, node in self._assigned.items() if node.name != entry.node}
            elif entry.node in self._nodes:
                self._assigned[entry.group, entry.pool, entry.number] = self._nodes[entry.node]

    def pool_of(self, name: str) -> PoolName:
        """The pool of a node."""
        return self._nodes[name].pool

    def settle(
        self, wanted: Iterable[Place], used: Collection[str], now_s: float, own: Mapping[Place, Collection[str]] | None = None
    ) -> list[Assigned | Returned]:
        """Give every wanted place a node, and take back those of places that nobody wants, unless a job still uses the node.

        Args:
            own: names of the nodes that some places may have.

        Raises:
            InvariantError: there are more places than nodes.
        """
        places = set(wanted)
        entries: list[Assigned | Returned] = [*self.take_back(places, used, now_s)]
        own = own or {}
        for place in sorted(places, key=lambda place: (place not in own, place)):
            if place in self._assigned:
                continue
            group, pool, number = place
            free = [node for node in self.free(pool) if place not in own or node.name in own[place]]
            if not free:
                raise InvariantError(f"R5: there is no {pool} node left for group {group}")
            self._assigned[place] = free[0]
            entries.append(Assigned(now_s, group, pool, number, free[0].name))
        return entries

    def take_back(self, wanted: Collection[Place], used: Collection[str], now_s: float) -> list[Returned]:
        """Free the nodes of places that nobody wants, unless a job still uses the node."""
        places = [place for place, node in self._assigned.items() if place not in wanted and node.name not in used]
        return [Returned(now_s, self._assigned.pop(place).name) for place in places]

    def take(self, job_id: str, nodes: Sequence[PoolNode]) -> bool:
        """A job holds nodes, or parts of nodes, from now on; whether one of them last ran another job.

        Raises:
            InvariantError: a device of one is held already.
        """
        wanted = [(node.name, device) for node in nodes for device in node.devices]
        for place in wanted:
            if place in self._holders:
                raise InvariantError(f"R3: {place[0]} is given to {job_id} while {self._holders[place]} runs on it")
        switched = any(self._last.get(node.name, job_id) != job_id for node in nodes)
        self._holders.update(dict.fromkeys(wanted, job_id))
        self._last.update({node.name: job_id for node in nodes})
        return switched

    def give(self, job_id: str, nodes: Sequence[PoolNode]) -> None:
        """A job holds nodes, or parts of nodes, no longer.

        Raises:
            InvariantError: it did not.
        """
        for node in nodes:
            for device in node.devices:
                if self._holders.get((node.name, device)) != job_id:
                    raise InvariantError(f"R3: {job_id} gives {node.name} back, which it does not hold")
                del self._holders[node.name, device]

    def holders(self, names: Collection[str]) -> tuple[str, ...]:
        """Ids of the jobs that hold any of these nodes."""
        return tuple(sorted({job_id for (name, _), job_id in self._holders.items() if name in names}))
