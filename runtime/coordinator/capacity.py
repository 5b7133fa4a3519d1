"""The nodes of a run, and the check whether jobs fit on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.nodes import NodePool
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.spec import JobSpec
from runtime.machine import Node
from runtime.machines.nodes import POOLS
from runtime.machines.pools import beyond, too_few_nodes, too_large


class Capacity:
    """The nodes of a run, and the check whether jobs fit on them.

    Args:
        plan: Plan of the run.
        nodes: The scheduler's nodes.
        state: The scheduler's state, with the present quotas.
    """

    def __init__(self, plan: RunPlan, nodes: NodePool, state: State) -> None:
        self._plan, self._nodes, self._state = plan, nodes, state
        self._on_hosts: tuple[int, dict[str, list[Node]]] | None = None  # number of changes of nodes, and nodes by host

    def nodes(self) -> list[Node]:
        """Return the nodes of the run."""
        return [cast("Node", node) for pool in POOLS for node in self._nodes.nodes(pool)]

    def nodes_by_host(self) -> Mapping[str, list[Node]]:
        """Return the nodes of each host, from a cache that follows changes of nodes."""
        if self._on_hosts is None or self._on_hosts[0] != self._nodes.changes:
            by_host: defaultdict[str, list[Node]] = defaultdict(list)
            for node in self.nodes():
                by_host[node.host].append(node)
            self._on_hosts = self._nodes.changes, dict(by_host)
        return self._on_hosts[1]

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return the names of nodes that are lost or unknown, sorted."""
        return sorted({*names} - ({node.name for node in self.nodes()} - self._nodes.missing))

    def jobs_sharing_rollout_nodes(self, handle: JobHandle) -> tuple[str, ...]:
        """Return the ids of the other jobs that hold rollout nodes of a job now."""
        names = [node.name for node in handle.place.nodes["rollout"]]
        return tuple(holder for holder in self._nodes.holders(names) if holder != handle.id)

    def problem_of_placing(self, spec: JobSpec) -> str | None:
        """Return the reason why a job can never be placed, or None."""
        return self._beyond(spec, self._left())

    def new_beyond(self, specs: Iterable[JobSpec]) -> Iterator[str | None]:
        """Yield for each new job the reason why it or one of its shapes can never be placed, or exceeds its user's quota, or None.

        A shape that becomes impossible later is only never chosen. A job that exceeds a later quota waits for another one.
        """
        left = self._left()
        return (self._beyond(spec, left) or self.beyond_quota(spec) or too_few_nodes(spec, left, " left") for spec in specs)

    def beyond_quota(self, spec: JobSpec) -> str | None:
        """Return how a job alone exceeds its user's present quota, or None."""
        cluster = self._state.cluster
        return cluster.beyond_quota(spec.user, {pool: getattr(spec, pool).nodes for pool in cluster.sides})

    def _beyond(self, spec: JobSpec, left: Counter[str]) -> str | None:
        return beyond(spec, self._state.cluster, self._plan.policy, left)

    def too_large(self, job: Job) -> str | None:
        """Return the reason why a job does not fit on any node, or None."""
        return too_large(job, self._plan.cluster)

    def _left(self) -> Counter[str]:
        left: Counter[str] = Counter({pool: self._nodes.count(pool) for pool in self._plan.cluster.sides})
        left.subtract(self._nodes.pool_of(name) for name in self._nodes.missing)
        return left
