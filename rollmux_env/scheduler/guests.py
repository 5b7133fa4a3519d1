"""Jobs that nobody knows yet, which are profiled on lent nodes, or as guests of a group on those of the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.nodes import LEASE, POOLS, NodePool, Place, PoolName
from rollmux_env.scheduler.view import DispatchPolicy

Needs = Mapping[str, Mapping[PoolName, int]]


class Batch(NamedTuple):
    """Jobs that are profiled together.

    Attributes:
        needs: nodes that each asks for, by id and pool.
        rule: the dispatch policy that they are under on lent nodes; None for the usual one.
        names: of the nodes that they may have; none: any.
    """

    needs: dict[str, Mapping[PoolName, int]]
    rule: DispatchPolicy | None
    names: frozenset[str]

    @property
    def most(self) -> dict[PoolName, int]:
        """Nodes of each pool that are enough for any of them."""
        return {pool: max((need[pool] for need in self.needs.values()), default=0) for pool in POOLS}

    def may_have(self, name: str) -> bool:
        """Whether they may have a node."""
        return not self.names or name in self.names


class Guests:
    """One batch is profiled at a time, in the order in which they came.

    Attributes:
        present: ids of the jobs that are being profiled. group: where: the number of a group, or `LEASE`; None where nobody is.
        lent: nodes of each pool that are lent; None where nobody has a lease. names: of those that may be; none: any.
    """

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.group: int | None = None
        self.lent: dict[PoolName, int] | None = None
        self.names: frozenset[str] = frozenset()
        self._batches: list[Batch] = []

    @property
    def waiting(self) -> bool:
        """Whether somebody waits to be profiled."""
        return bool(self._batches)

    def ask(self, needs: Needs, rule: DispatchPolicy | None, names: frozenset[str]) -> None:
        """Jobs want to be profiled. Those under a rule of their own come first, and stay on the nodes that are lent already."""
        batch = Batch(dict(needs), rule, names)
        self._batches.insert(0 if rule is not None else len(self._batches), batch)

    def go(self, job_id: str) -> None:
        """A job is profiled, or never will be."""
        self.present.discard(job_id)
        for batch in self._batches:
            batch.needs.pop(job_id, None)
        self._batches = [batch for batch in self._batches if batch.needs]

    def end(self) -> bool:
        """Give back what was lent, if nobody is left who goes on there; whether something changed."""
        if self.group is None or self.present:
            return False
        if self.lent and self._batches and self._batches[0].rule is not None:
            most = self._batches[0].most
            if all(self.lent[pool] >= most[pool] for pool in POOLS):
                return False
        self.group = self.lent = None
        return True

    def next(self, state: State, nodes: NodePool) -> Batch | None:
        """The jobs that can be profiled now; `group` and `lent` say where. None while a job still has nodes that are missing."""
        if self.present or not self._batches or nodes.missing:
            return None
        batch = self._batches[0]
        most = batch.most
        free = {pool: sum(batch.may_have(node.name) for node in nodes.free(pool)) for pool in POOLS}
        if self.lent is not None or all(free[pool] >= most[pool] for pool in POOLS):
            self.group, self.lent, self.names = LEASE, self.lent or most, batch.names
        else:
            host = _host(batch, state, nodes)
            if host is None:
                return None
            self.group = host
        self.present = {*batch.needs}
        return self._batches.pop(0)

    def places(self) -> set[Place]:
        """What is lent, as the pool assigns it."""
        return {(LEASE, pool, number) for pool, count in (self.lent or {}).items() for number in range(count)}


def _host(batch: Batch, state: State, nodes: NodePool) -> int | None:
    """Return the number of the first group on whose nodes the jobs of a batch can be profiled as guests, or None."""
    if batch.rule is not None:
        return None
    most, drained = batch.most, nodes.drained_groups()
    for group in state.group_list():
        if group.id in drained or not all(map(batch.may_have, nodes.assigned(group.id))):
            continue
        if len(group.rollout_nodes) >= most["rollout"] and group.training_nodes >= most["training"]:
            return group.id
    return None
