"""Jobs without a profile, which are profiled on lent nodes, or as guests on the nodes of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.nodes import POOLS, PROFILING_GROUP, NodePool, NodeSlot, PoolName
from rollmux_env.scheduler.quotas import lending_quota_reason
from rollmux_env.scheduler.view import DispatchPolicy

Needs = Mapping[str, Mapping[PoolName, int]]


class ProfilingBatch(NamedTuple):
    """Jobs that are profiled together.

    Attributes:
        needs: Number of nodes that each job asks for, by id and pool.
        rule: Dispatch policy on lent nodes, or None for the usual one.
        names: Names of the nodes that they may use, or empty for any.
        users: User of each job, by id.
        heeds_quotas: Whether the jobs wait while a quota of their users bars them.
    """

    needs: dict[str, Mapping[PoolName, int]]
    rule: DispatchPolicy | None
    names: frozenset[str]
    users: Mapping[str, str]
    heeds_quotas: bool

    @property
    def most(self) -> dict[PoolName, int]:
        """Number of nodes of each pool that suffices for any of the jobs."""
        return {pool: max((need[pool] for need in self.needs.values()), default=0) for pool in POOLS}

    def may_use(self, name: str) -> bool:
        """Return whether the jobs may use a node."""
        return not self.names or name in self.names

    def quota_reason(self, state: State) -> str:
        """Return which quota bars the jobs now, in words, or an empty text."""
        users = {*self.users.values()} if self.heeds_quotas and state.cluster.quotas else ()
        return next(filter(None, (lending_quota_reason(state, user, self.most) for user in sorted(users))), "")


class Guests:
    """The jobs that are profiled, one batch at a time, in order of arrival.

    Attributes:
        present: Identifiers of the jobs that are being profiled.
        group: Number of the group whose nodes they use, `PROFILING_GROUP` for lent nodes, or None without jobs.
        lent: Number of lent nodes of each pool, or None if none are lent.
        names: Names of the nodes that may be lent, or empty for any.
        users: User of each job of the present batch, by id.
        waiting: Batches of jobs that wait to be profiled, in order.
    """

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.group: int | None = None
        self.lent: dict[PoolName, int] | None = None
        self.names: frozenset[str] = frozenset()
        self.users: Mapping[str, str] = {}
        self.waiting: list[ProfilingBatch] = []

    def ask(
        self,
        needs: Needs,
        rule: DispatchPolicy | None,
        names: frozenset[str],
        users: Mapping[str, str],
        heeds_quotas: bool,
    ) -> None:
        """Queue jobs to be profiled. Those with a dispatch policy come first, and use the nodes that are already lent.

        Args:
            needs: Number of nodes that each job asks for, by id and pool.
            rule: Dispatch policy on lent nodes, or None for the usual one.
            names: Names of the nodes that they may use, or empty for any.
            users: User of each job, by id.
            heeds_quotas: Whether the jobs wait while a quota of their users bars them.
        """
        batch = ProfilingBatch(dict(needs), rule, names, users, heeds_quotas)
        self.waiting.insert(0 if rule is not None else len(self.waiting), batch)

    def remove(self, job_id: str) -> None:
        """Remove a job that is profiled or has failed."""
        self.present.discard(job_id)
        for batch in self.waiting:
            batch.needs.pop(job_id, None)
        self.waiting = [batch for batch in self.waiting if batch.needs]

    def end(self) -> bool:
        """Give back the lent nodes, or leave the group in `group`, if no job needs its nodes any longer.

        Returns:
            Whether nodes were given back, or guests have left a group.
        """
        if self.present:
            return False
        if self.lent and self.waiting and self.waiting[0].rule is not None:
            most = self.waiting[0].most
            if all(self.lent[pool] >= most[pool] for pool in POOLS):
                return False
        self.group = self.lent = None
        return True

    def may_begin(self, state: State) -> bool:
        """Return whether no job is being profiled, and one waits that no quota bars."""
        return not self.present and self._first(state) is not None

    def next(self, state: State, nodes: NodePool) -> ProfilingBatch | None:
        """Return the jobs that can be profiled now, and set `group` and `lent`.

        Jobs that a quota bars are passed over. The answer is None if there are no others, or while nodes are missing that a job
        still has.
        """
        if self.present or nodes.missing:
            return None
        if (batch := self._first(state)) is None:
            return None
        most = batch.most
        free = {pool: sum(batch.may_use(node.name) for node in nodes.free(pool)) for pool in POOLS}
        if self.lent is not None or all(free[pool] >= most[pool] for pool in POOLS):
            self.group, self.lent, self.names = PROFILING_GROUP, self.lent or most, batch.names
        else:
            host = _host(batch, state, nodes)
            if host is None:
                return None
            self.group = host
        self.present, self.users = {*batch.needs}, batch.users
        self.waiting = [other for other in self.waiting if other is not batch]
        return batch

    def _first(self, state: State) -> ProfilingBatch | None:
        return next((batch for batch in self.waiting if not batch.quota_reason(state)), None)

    def quota_reason(self, job_id: str, state: State) -> str:
        """Return which quota keeps a job from being profiled now, in words, or an empty text."""
        return next((batch.quota_reason(state) for batch in self.waiting if job_id in batch.needs), "")

    def places(self) -> set[NodeSlot]:
        """Return the places of the lent nodes."""
        return {(PROFILING_GROUP, pool, number) for pool, count in (self.lent or {}).items() for number in range(count)}


def _host(batch: ProfilingBatch, state: State, nodes: NodePool) -> int | None:
    """Return the number of the first group on whose nodes the jobs of a batch can be profiled as guests, or None."""
    if batch.rule is not None:
        return None
    most, drained = batch.most, nodes.drained_groups()
    for group in state.group_list():
        if group.id in drained or not all(map(batch.may_use, nodes.assigned(group.id))):
            continue
        if len(group.rollout_nodes) >= most["rollout"] and group.training_nodes >= most["training"]:
            return group.id
    return None
