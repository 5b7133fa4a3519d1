"""Worker sets: the resource types of Gavel+, the speed of a job on each, and the shares of time that jobs get.

A worker set is a number of rollout nodes and training nodes, each of one pool, that one job at a time holds. The resource types are
the worker sets that the current jobs ask for. A job runs on any set with the nodes of one of its modes.

A schedule of rounds that realises given shares of each job on each set exists if and only if the shares of every job and of every
set sum to at most 1. By Birkhoff and von Neumann such a matrix is a mixture of matchings, and each matching is a round. The program
ensures this for the jobs. The sets are filled first fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from policies.gavel.program import ProgramInput, solve
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.tables import TOLERANCE, Floats
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job

MIN_SHARE = 1e-8  # share of a set's time below which a share is a rounding error of the solver


class WorkerSetKind(NamedTuple):
    """A resource type: the nodes of a worker set and the names of their pools, "" for a side without nodes."""

    rollout_nodes: int
    training_nodes: int
    rollout_pool: str
    training_pool: str


@dataclass(frozen=True)
class RunMode:
    """One way to run a job alone on a worker set.

    Attributes:
        iteration_s: Seconds of an iteration.
        rollout_gb: Host memory that keeps the job resident, GB on each rollout node.
        training_gb: Host memory that keeps the job resident, GB on each training node.
        rollout_device_gb: Memory that the resident job occupies on each GPU of the rollout nodes, GB.
        training_device_gb: Memory that the resident job occupies on each GPU of the training nodes, GB.
        rollout_busy_s: Node-seconds of an iteration on nodes of the rollout pool.
        training_busy_s: Node-seconds of an iteration on nodes of the training pool.
    """

    iteration_s: float
    rollout_gb: float
    training_gb: float
    rollout_device_gb: float
    training_device_gb: float
    rollout_busy_s: float
    training_busy_s: float


def nodes_of(kind: WorkerSetKind) -> Counter[str]:
    """Return the nodes of a worker set, by name of the pool."""
    nodes: Counter[str] = Counter()
    nodes[kind.rollout_pool] += kind.rollout_nodes
    nodes[kind.training_pool] += kind.training_nodes
    return +nodes


def kinds_for(jobs: Sequence[Job], training_slowdown: float | None) -> list[WorkerSetKind]:
    """Return the worker sets for the jobs: disaggregated, training nodes alone and, with a slowdown, rollout nodes alone."""
    types: set[WorkerSetKind] = set()
    for job in jobs:
        rollout, training = job.rollout, job.training
        types.add(WorkerSetKind(rollout.nodes, training.nodes, rollout.pool, training.pool))
        if job.staleness:
            continue
        types.add(WorkerSetKind(0, job.colocated.nodes if job.colocated else training.nodes, "", training.pool))
        if training_slowdown is not None:
            types.add(WorkerSetKind(rollout.nodes, 0, rollout.pool, ""))
    return sorted(types)


def fastest_mode(job: Job, kind: WorkerSetKind, cluster: Cluster, training_slowdown: float | None) -> RunMode | None:
    """Return the fastest mode of a job on a worker set, or None if it has no mode there or a node has too little memory."""
    modes = [mode for mode in _modes(job, kind, training_slowdown) if fits([mode], kind, cluster)]
    return min(modes, key=lambda mode: mode.iteration_s, default=None)


def _modes(job: Job, kind: WorkerSetKind, training_slowdown: float | None) -> list[RunMode]:
    rollout_nodes = kind.rollout_nodes if kind.rollout_pool == job.rollout.pool else 0
    training_nodes = kind.training_nodes if kind.training_pool == job.training.pool else 0
    rollout, training = job.rollout, job.training
    both_gb = rollout.host_memory_gb + training.host_memory_gb
    own_gb, both_device_gb = (rollout.device_gb, training.device_gb), rollout.device_gb + training.device_gb
    modes = []
    if rollout_nodes >= rollout.nodes and training_nodes >= training.nodes:
        training_s = job.training_s(training_nodes)
        iteration_s = alone_s(rollout.worst_case_s, training_s, job.sync_s, job.staleness)
        busy_s = (rollout.worst_case_s * rollout.nodes, training_s * training_nodes)
        modes.append(RunMode(iteration_s, rollout.host_memory_gb, training.host_memory_gb, *own_gb, *busy_s))
    if job.staleness:
        return modes  # the modes below run both phases on the same nodes, where they would take turns
    alone = job.colocated.nodes if job.colocated else training.nodes
    if training_nodes >= alone:
        block = job.colocated
        iteration_s = block.rollout_s + block.training_s if block else rollout.worst_case_s + training.worst_case_s
        modes.append(RunMode(iteration_s, 0.0, both_gb, 0.0, both_device_gb, 0.0, iteration_s * alone))
    if training_slowdown is not None and rollout_nodes >= rollout.nodes:
        training_s = training.worst_case_s * training_slowdown * training.nodes / rollout.nodes
        iteration_s = rollout.worst_case_s + training_s
        modes.append(RunMode(iteration_s, both_gb, 0.0, both_device_gb, 0.0, iteration_s * rollout.nodes, 0.0))
    return modes


def fits(modes: Sequence[RunMode], kind: WorkerSetKind, cluster: Cluster) -> bool:
    """Return whether the jobs of these modes can be resident on one worker set together."""
    limits_gb: dict[str, float | None] = {}
    for side, name in (("rollout", kind.rollout_pool), ("training", kind.training_pool)):
        if name:
            pool = cluster.pools[name]
            limits_gb |= {f"{side}_gb": pool.node_memory_gb, f"{side}_device_gb": pool.device_memory_gb}
    return all(
        sum(getattr(mode, name) for mode in modes) <= limit_gb * (1 + TOLERANCE)
        for name, limit_gb in limits_gb.items()
        if limit_gb is not None
    )


@dataclass(frozen=True)
class TimeShare:
    """A job's share of a worker set.

    Attributes:
        job_id: Id of the job.
        share: Fraction of the set's time.
        mode: Mode in which the job runs there.
    """

    job_id: str
    share: float
    mode: RunMode


@dataclass(frozen=True)
class WorkerSet:
    """Nodes that one job at a time holds for a round.

    Attributes:
        kind: Resource type of the set.
        shares: Shares of the jobs that are resident on the set.
    """

    kind: WorkerSetKind
    shares: list[TimeShare] = field(default_factory=list)

    @property
    def free(self) -> float:
        """Unassigned fraction of the set's time."""
        return 1.0 - sum(one.share for one in self.shares)

    def takes(self, mode: RunMode, cluster: Cluster) -> bool:
        """Return whether a job of this mode can be resident beside the current jobs."""
        return fits([*(one.mode for one in self.shares), mode], self.kind, cluster)

    def add(self, job_id: str, share: float, mode: RunMode) -> float:
        """Make a job resident for a share of the time, or for what is free if that is less. Return the assigned share."""
        share = min(share, self.free)
        self.shares.append(TimeShare(job_id, share, mode))
        return share


@dataclass(frozen=True)
class WorkerSetAllocation:
    """Worker sets and the jobs resident on each.

    Attributes:
        sets: The worker sets.
        relaxed_usd_per_hour: Value of the linear program without whole numbers, $/h, a lower bound for whole sets.
    """

    sets: tuple[WorkerSet, ...] = ()
    relaxed_usd_per_hour: float = 0.0

    @property
    def nodes(self) -> Counter[str]:
        """Nodes of all sets, by name of the pool."""
        return sum((nodes_of(one.kind) for one in self.sets), Counter())

    def time_shares(self) -> list[TimeShare]:
        """Return all shares, set by set."""
        return [share for one in self.sets for share in one.shares]

    def without(self, job_ids: Collection[str]) -> WorkerSetAllocation:
        """Return the allocation without some jobs and without the sets that become unused."""
        sets = [WorkerSet(one.kind, [share for share in one.shares if share.job_id not in job_ids]) for one in self.sets]
        return WorkerSetAllocation(tuple(one for one in sets if one.shares), self.relaxed_usd_per_hour)


def allocate(jobs: Sequence[Job], cluster: Cluster, training_slowdown: float | None) -> WorkerSetAllocation | None:
    """Solve the program for some jobs and distribute their shares over worker sets.

    Args:
        jobs: Jobs to allocate.
        cluster: Pools with their prices and limits.
        training_slowdown: Slowdown of training on rollout nodes, as in `Gavel`.

    Returns:
        The allocation, or None if `max_nodes` allows none or the first-fit distribution exceeds it.
    """
    if not jobs:
        return WorkerSetAllocation()
    kinds = kinds_for(jobs, training_slowdown)
    modes = [[fastest_mode(job, kind, cluster, training_slowdown) for kind in kinds] for job in jobs]
    solution = solve(_problem(jobs, kinds, modes, cluster))
    if solution is None:
        return None
    fractions, relaxed_usd_per_hour = solution
    columns = zip(kinds, zip(*modes, strict=True), fractions.T, strict=True)
    sets = [one for kind, own, time in columns for one in _fill(kind, jobs, own, time, cluster)]
    allocation = WorkerSetAllocation(tuple(sets), relaxed_usd_per_hour)
    return None if too_many(allocation.nodes, cluster) else allocation


def _problem(
    jobs: Sequence[Job], kinds: Sequence[WorkerSetKind], modes: Sequence[Sequence[RunMode | None]], cluster: Cluster
) -> ProgramInput:
    """Formulate the program for some jobs and the pools that they use."""
    asked = [nodes_of(kind) for kind in kinds]
    pools = {name: pool for name, pool in cluster.pools.items() if any(name in nodes for nodes in asked)}
    nodes = np.array([[one[name] for name in pools] for one in asked], dtype=np.int64)
    iterations = [[job.solo_s / mode.iteration_s if mode else 0.0 for mode in row] for job, row in zip(jobs, modes, strict=True)]
    return ProgramInput(
        speed=np.array(iterations),
        least=np.array([1 / job.slo for job in jobs]),
        nodes=nodes,
        usd_per_hour=(nodes * [pool.usd_per_node_hour for pool in pools.values()]).sum(axis=1),
        nodes_max=[inf if pool.max_nodes is None else pool.max_nodes for pool in pools.values()],
    )


def too_many(nodes: Counter[str], cluster: Cluster) -> list[str]:
    """Return the names of the pools with fewer nodes than `nodes` asks for."""
    return [name for name, pool in cluster.pools.items() if pool.max_nodes is not None and nodes[name] > pool.max_nodes]


def _fill(
    kind: WorkerSetKind, jobs: Sequence[Job], modes: Sequence[RunMode | None], time: Floats, cluster: Cluster
) -> list[WorkerSet]:
    """Distribute the jobs' fractions of time on one type over worker sets, first fit.

    A job uses several sets if none has enough free time. Sets without enough memory for a job are skipped, so there can be more
    sets than the program asked for. Sets that no job needs are not created.
    """
    sets: list[WorkerSet] = []
    for job, mode, left in zip(jobs, modes, time.tolist(), strict=True):
        if mode is None:
            continue
        for one in sets:
            if left > MIN_SHARE and one.free > MIN_SHARE and one.takes(mode, cluster):
                left -= one.add(job.id, left, mode)
        if left > MIN_SHARE:
            sets.append(WorkerSet(kind))
            sets[-1].add(job.id, left, mode)
    return sets
