"""The nodes of a cluster by name: the place that each one has in a group, and the job that holds each of its devices."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, Protocol

from rollmux_env.errors import InvariantError

PoolName = Literal["rollout", "training"]
POOLS: tuple[PoolName, PoolName] = ("rollout", "training")
NodeSlot = tuple[int, PoolName, int]  # group, pool, number of the node within the group
PROFILING_GROUP = -1  # number that replaces a group's for nodes lent to jobs that are profiled


class PoolNode(Protocol):
    """Protocol of a node, or of a part of one. A driver's nodes may have more attributes."""

    @property
    def name(self) -> str:
        """Unique name; a part has the name of its node."""
        ...

    @property
    def pool(self) -> PoolName:
        """Pool of the node."""
        ...

    @property
    def devices(self) -> tuple[int | str, ...]:
        """Numbers or names of its computing devices, at least one: GPUs, or cores if there are none."""
        ...


@dataclass(frozen=True)
class Assigned:
    """The assignment of a node to a place of a group, until the group gives it back.

    Attributes:
        at_s: Time of the assignment, in seconds.
        group: Id of the group, or `PROFILING_GROUP`.
        pool: Pool of the node.
        number: Number of the node within the group.
        node: Name of the node.
    """

    at_s: float
    group: int
    pool: PoolName
    number: int
    node: str


@dataclass(frozen=True)
class Returned:
    """The return of a node by its group.

    Attributes:
        at_s: Time of the return, in seconds.
        node: Name of the node.
    """

    at_s: float
    node: str


@dataclass(frozen=True)
class NodeShareSpan:
    """A share of a node that a rollout held for some time, if it did not hold all of its nodes throughout.

    Attributes:
        node: Name of the node.
        from_s: Start, in seconds.
        until_s: End, in seconds.
        share: Share of the node.
        tail: Whether it was held by the migrated tail of the rollout.
    """

    node: str
    from_s: float
    until_s: float
    share: float
    tail: bool


class NodePool:
    """The assignment of nodes to places of groups, and the holders of their devices.

    Args:
        nodes: All nodes.

    Attributes:
        drained: Names of nodes that get no new places, whether they are present or not.
        missing: Names of nodes that have left the cluster but are still assigned or held.
        changes: Number of times that nodes were added or lost.
    """

    def __init__(self, nodes: Iterable[PoolNode]) -> None:
        self._nodes: dict[str, PoolNode] = {}
        self.drained: set[str] = set()
        self.missing: set[str] = set()
        self.changes = 0
        self._of_group: dict[int, dict[NodeSlot, PoolNode]] = {}  # nodes of each group's places
        self._place_of: dict[str, NodeSlot] = {}  # by node
        self._number: dict[str, int] = {}  # number of each node in the order in which they were added
        self._idle: dict[PoolName, list[tuple[int, str]]] = {}  # nodes without a place, in that order
        self._holders: dict[tuple[str, int | str], str] = {}  # by node and device
        self._last: dict[str, str] = {}  # by node, the job that held it last
        self.add(nodes)

    def nodes(self, pool: PoolName) -> list[PoolNode]:
        """Return all present nodes of a pool."""
        return [node for node in self._nodes.values() if node.pool == pool]

    def count(self, pool: PoolName) -> int:
        """Return the number of present nodes of a pool."""
        return self._count[pool]

    def free(self, pool: PoolName) -> list[PoolNode]:
        """Return the nodes of a pool that have no place and are not drained."""
        return [*self._free(pool)]

    def free_count(self, pool: PoolName) -> int:
        """Return the number of nodes of a pool that have no place and are not drained."""
        return sum(1 for _ in self._free(pool)) if self.drained else len(self._idle.get(pool, ()))

    def in_service(self, pool: PoolName) -> int:
        """Return the number of present nodes of a pool, without drained ones that have no place."""
        idle = self.drained - self._place_of.keys()
        return sum(node.name not in idle for node in self.nodes(pool))

    def drained_groups(self) -> set[int]:
        """Return the groups that have a drained node."""
        return {self._place_of[name][0] for name in self.drained & self._place_of.keys()}

    def node(self, group: int, pool: PoolName, number: int) -> PoolNode:
        """Return the node of an assigned place."""
        return self._of_group[group][group, pool, number]

    def places(self, names: Iterable[str]) -> list[NodeSlot]:
        """Return the places that nodes have, sorted."""
        return sorted(self._place_of[name] for name in names if name in self._place_of)

    def assigned(self, group: int) -> list[str]:
        """Return the names of a group's nodes, rollout nodes first."""
        return [node.name for _, node in sorted(self._of_group.get(group, {}).items(), key=itemgetter(0))]

    def assigned_by_group(self) -> dict[int, list[str]]:
        """Return the names of the nodes of every group, rollout nodes first."""
        return {group: self.assigned(group) for group in sorted(self._of_group)}

    def lose(self, now_s: float) -> list[Returned]:
        """Remove the missing nodes from the pool, and return a `Returned` for each one that had a place."""
        names, self.missing = self.missing, set()
        places = [self._place_of[name] for name in names if name in self._place_of]
        self._nodes = {name: node for name, node in self._nodes.items() if name not in names}
        lost = [Returned(now_s, self._free_place(place).name) for place in sorted(places)]
        self._find_idle()
        return lost

    def add(self, nodes: Iterable[PoolNode]) -> None:
        """Add nodes."""
        self._nodes |= {node.name: node for node in nodes}
        self._find_idle()

    def restore(self, entries: Iterable[Assigned | Returned], last_holders: Mapping[str, str] | None = None) -> None:
        """Repeat the assignments of an earlier pool, for those of its nodes that are present by name.

        Args:
            entries: Assignments and returns in order.
            last_holders: Id of the job that has held a node last, by name of the node, or None if it is not known of any.
        """
        self._last.update(last_holders or {})
        for entry in entries:
            if isinstance(entry, Returned):
                if entry.node in self._place_of:
                    self._free_place(self._place_of[entry.node])
            elif entry.node in self._nodes:
                self._assign((entry.group, entry.pool, entry.number), self._nodes[entry.node])

    def pool_of(self, name: str) -> PoolName:
        """Return the pool of a node."""
        return self._nodes[name].pool

    def settle(
        self,
        wanted: Iterable[NodeSlot],
        used: Collection[str],
        now_s: float,
        allowed_nodes: Mapping[NodeSlot, Collection[str]] | None = None,
        groups: Iterable[int] | None = None,
    ) -> list[Assigned | Returned]:
        """Give every wanted place a node, and take back the nodes of other places unless a job still uses them.

        Args:
            wanted: Places that need a node.
            used: Names of nodes that jobs still use.
            now_s: Current time, in seconds.
            allowed_nodes: Names of the nodes that each place may have. A place that is no key may have any node. With None every
                place may have any node.
            groups: Groups to which `wanted` refers, or None for all; the places of other groups stay unchanged.

        Raises:
            InvariantError: If there are more places than nodes.
        """
        places = set(wanted)
        entries: list[Assigned | Returned] = [*self.take_back(places, used, now_s, groups)]
        allowed = allowed_nodes or {}
        missing = [place for place in places if place not in self._of_group.get(place[0], ())]
        for place in sorted(missing, key=lambda place: (place not in allowed, place)):
            group, pool, number = place
            node = next((node for node in self._free(pool) if place not in allowed or node.name in allowed[place]), None)
            if node is None:
                raise InvariantError(f"R5: there is no {pool} node left for group {group}")
            self._assign(place, node)
            entries.append(Assigned(now_s, group, pool, number, node.name))
        return entries

    def take_back(
        self, wanted: Collection[NodeSlot], used: Collection[str], now_s: float, groups: Iterable[int] | None = None
    ) -> list[Returned]:
        """Free the nodes of places that are not wanted, unless a job still uses the node.

        Args:
            wanted: Places that keep their nodes.
            used: Names of nodes that jobs still use.
            now_s: Current time, in seconds.
            groups: Groups to which `wanted` refers, or None for all.
        """
        numbers = self._of_group if groups is None else groups
        nodes = [item for group in numbers for item in self._of_group.get(group, {}).items()]
        freed = [place for place, node in nodes if place not in wanted and node.name not in used]
        return [Returned(now_s, self._free_place(place).name) for place in freed]

    def others(self, group: int, wanted: Collection[NodeSlot]) -> list[NodeSlot]:
        """Return the places of a group other than the wanted ones."""
        return [place for place in self._of_group.get(group, ()) if place not in wanted]

    def occupy(self, job_id: str, nodes: Sequence[PoolNode]) -> bool:
        """Let a job hold nodes, or parts of nodes, and return whether one of the nodes was last held by another job.

        Raises:
            InvariantError: If a device of one is held already.
        """
        wanted = [(node.name, device) for node in nodes for device in node.devices]
        for place in wanted:
            if place in self._holders:
                raise InvariantError(f"R3: {place[0]} is given to {job_id} while {self._holders[place]} runs on it")
        switched = any(self._last.get(node.name, job_id) != job_id for node in nodes)
        self._holders.update(dict.fromkeys(wanted, job_id))
        self._last.update({node.name: job_id for node in nodes})
        return switched

    def release(self, job_id: str, nodes: Sequence[PoolNode]) -> None:
        """Release nodes, or parts of nodes, that a job holds.

        Raises:
            InvariantError: If the job does not hold one of them.
        """
        for node in nodes:
            for device in node.devices:
                if self._holders.get((node.name, device)) != job_id:
                    raise InvariantError(f"R3: {job_id} gives {node.name} back, which it does not hold")
                del self._holders[node.name, device]

    def holders(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the ids of the jobs that hold any of the given nodes."""
        return tuple(sorted({job_id for (name, _), job_id in self._holders.items() if name in names}))

    def _free(self, pool: PoolName) -> Iterator[PoolNode]:
        return (self._nodes[name] for _, name in self._idle.get(pool, ()) if name not in self.drained)

    def _find_idle(self) -> None:
        self.changes += 1
        self._idle = {}
        self._count = Counter(node.pool for node in self._nodes.values())
        for name, node in self._nodes.items():
            number = self._number.setdefault(name, len(self._number))
            if name not in self._place_of:
                self._idle.setdefault(node.pool, []).append((number, name))
        for idle in self._idle.values():
            idle.sort()

    def _assign(self, place: NodeSlot, node: PoolNode) -> None:
        for taken in {place, self._place_of.get(node.name, place)}:
            if taken in self._of_group.get(taken[0], ()):
                self._free_place(taken)
        self._of_group.setdefault(place[0], {})[place] = node
        self._place_of[node.name] = place
        idle = self._idle[node.pool]
        del idle[bisect_left(idle, (self._number[node.name], node.name))]

    def _free_place(self, place: NodeSlot) -> PoolNode:
        """Free a place, and return its node."""
        places = self._of_group[place[0]]
        node = places.pop(place)
        if not places:
            del self._of_group[place[0]]
        del self._place_of[node.name]
        if node.name in self._nodes:
            insort(self._idle.setdefault(node.pool, []), (self._number[node.name], node.name))
        return node
