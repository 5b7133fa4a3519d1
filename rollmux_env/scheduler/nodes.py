"""The nodes of a cluster by name: which place of which group each one has, and which job holds which of its devices."""

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
    def devices(self) -> tuple[int | str, ...]:
        """Numbers or names of what it computes on, at least one: GPUs, or cores where there are none."""
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


class NodePool:
    """Assigns nodes to the places that groups have, and knows who holds each.

    Args:
        nodes: all there are.

    Attributes:
        drained: names of nodes that get no places any more, whether they are there or not.
        missing: names of nodes that are gone, and are still somebody's.
        changes: how often nodes have come or gone.
    """

    def __init__(self, nodes: Iterable[PoolNode]) -> None:
        self._nodes: dict[str, PoolNode] = {}
        self.drained: set[str] = set()
        self.missing: set[str] = set()
        self.changes = 0
        self._of_group: dict[int, dict[Place, PoolNode]] = {}  # the nodes of its places
        self._place_of: dict[str, Place] = {}  # by node
        self._number: dict[str, int] = {}  # nodes in the order in which they came
        self._idle: dict[PoolName, list[tuple[int, str]]] = {}  # nodes that no place has, in that order
        self._holders: dict[tuple[str, int | str], str] = {}  # by node and device
        self._last: dict[str, str] = {}
        self.add(nodes)

    def nodes(self, pool: PoolName) -> list[PoolNode]:
        """All that are there."""
        return [node for node in self._nodes.values() if node.pool == pool]

    def count(self, pool: PoolName) -> int:
        """How many are there."""
        return self._count[pool]

    def free(self, pool: PoolName) -> list[PoolNode]:
        """Nodes that no place has, and that are not drained."""
        return [*self._free(pool)]

    def free_count(self, pool: PoolName) -> int:
        """How many nodes no place has, of those that are not drained."""
        return sum(1 for _ in self._free(pool)) if self.drained else len(self._idle.get(pool, ()))

    def in_service(self, pool: PoolName) -> int:
        """How many nodes there are, without those that are drained and that no place has any more."""
        idle = self.drained - self._place_of.keys()
        return sum(node.name not in idle for node in self.nodes(pool))

    def drained_groups(self) -> set[int]:
        """Groups that have a drained node."""
        return {self._place_of[name][0] for name in self.drained & self._place_of.keys()}

    def node(self, group: int, pool: PoolName, number: int) -> PoolNode:
        """The node of a place that has one."""
        return self._of_group[group][group, pool, number]

    def assigned(self, group: int) -> list[str]:
        """Names of a group's nodes, rollout nodes first."""
        return [node.name for _, node in sorted(self._of_group.get(group, {}).items(), key=itemgetter(0))]

    def assigned_by_group(self) -> dict[int, list[str]]:
        """Names of the nodes of every group, rollout nodes first."""
        return {group: self.assigned(group) for group in sorted(self._of_group)}

    def lose(self, now_s: float) -> list[Returned]:
        """The missing nodes are nobody's any more, and so no place has them."""
        names, self.missing = self.missing, set()
        places = [self._place_of[name] for name in names if name in self._place_of]
        self._nodes = {name: node for name, node in self._nodes.items() if name not in names}
        lost = [Returned(now_s, self._free_place(place).name) for place in sorted(places)]
        self._find_idle()
        return lost

    def add(self, nodes: Iterable[PoolNode]) -> None:
        """More nodes are there."""
        self._nodes |= {node.name: node for node in nodes}
        self._find_idle()

    def restore(self, entries: Iterable[Assigned | Returned]) -> None:
        """Repeat the assignments of an earlier pool, as far as its nodes are there by name."""
        for entry in entries:
            if isinstance(entry, Returned):
                if entry.node in self._place_of:
                    self._free_place(self._place_of[entry.node])
            elif entry.node in self._nodes:
                self._assign((entry.group, entry.pool, entry.number), self._nodes[entry.node])

    def pool_of(self, name: str) -> PoolName:
        """The pool of a node."""
        return self._nodes[name].pool

    def settle(
        self,
        wanted: Iterable[Place],
        used: Collection[str],
        now_s: float,
        own: Mapping[Place, Collection[str]] | None = None,
        groups: Iterable[int] | None = None,
    ) -> list[Assigned | Returned]:
        """Give every wanted place a node, and take back those of places that nobody wants, unless a job still uses the node.

        Args:
            own: names of the nodes that some places may have.
            groups: whose places these are, where the others stay as they are.

        Raises:
            InvariantError: there are more places than nodes.
        """
        places = set(wanted)
        entries: list[Assigned | Returned] = [*self.take_back(places, used, now_s, groups)]
        own = own or {}
        missing = [place for place in places if place not in self._of_group.get(place[0], ())]
        for place in sorted(missing, key=lambda place: (place not in own, place)):
            group, pool, number = place
            node = next((node for node in self._free(pool) if place not in own or node.name in own[place]), None)
            if node is None:
                raise InvariantError(f"R5: there is no {pool} node left for group {group}")
            self._assign(place, node)
            entries.append(Assigned(now_s, group, pool, number, node.name))
        return entries

    def take_back(
        self, wanted: Collection[Place], used: Collection[str], now_s: float, groups: Iterable[int] | None = None
    ) -> list[Returned]:
        """Free the nodes of places that nobody wants, unless a job still uses the node; of some groups, or of all."""
        there = self._of_group if groups is None else groups
        nodes = [item for group in there for item in self._of_group.get(group, {}).items()]
        freed = [place for place, node in nodes if place not in wanted and node.name not in used]
        return [Returned(now_s, self._free_place(place).name) for place in freed]

    def has_others(self, group: int, wanted: Collection[Place]) -> bool:
        """Whether a group has places beside these."""
        return any(place not in wanted for place in self._of_group.get(group, ()))

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

    def _assign(self, place: Place, node: PoolNode) -> None:
        for taken in {place, self._place_of.get(node.name, place)}:
            if taken in self._of_group.get(taken[0], ()):
                self._free_place(taken)
        self._of_group.setdefault(place[0], {})[place] = node
        self._place_of[node.name] = place
        idle = self._idle[node.pool]
        del idle[bisect_left(idle, (self._number[node.name], node.name))]

    def _free_place(self, place: Place) -> PoolNode:
        """A place has no node any more; returns which it had."""
        places = self._of_group[place[0]]
        node = places.pop(place)
        if not places:
            del self._of_group[place[0]]
        del self._place_of[node.name]
        if node.name in self._nodes:
            insort(self._idle.setdefault(node.pool, []), (self._number[node.name], node.name))
        return node
