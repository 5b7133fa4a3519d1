"""Resource types of the pools, and the speed of a job on each: Gavel's throughput matrix.

A resource type is a worker set of a given shape: so many rollout and training nodes, of a pool each, held by one job at a time.
The shapes are those that the present jobs ask for. A job runs on any set that has the nodes of one of its modes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.tables import TOLERANCE, Floats
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job


class Shape(NamedTuple):
    """Rollout and training nodes of a worker set, and the names of their pools; "" where there are no nodes."""

    rollout_nodes: int
    training_nodes: int
    rollout_pool: str
    training_pool: str


@dataclass(frozen=True)
class RunMode:
    """How a job runs on a worker set of its own.

    Attributes:
        iteration_s: seconds of an iteration.
        rollout_gb, training_gb: host memory that keeps the job resident, GB on each node of either pool.
        rollout_device_gb, training_device_gb: memory that it keeps on each of their GPUs, GB.
        rollout_busy_s, training_busy_s: node-seconds of its phases in an iteration, by the pool whose nodes they run on.
    """

    iteration_s: float
    rollout_gb: float
    training_gb: float
    rollout_device_gb: float
    training_device_gb: float
    rollout_busy_s: float
    training_busy_s: float


def nodes_of(shape: Shape) -> Counter[str]:
    """Nodes of a worker set, by name of the pool."""
    nodes: Counter[str] = Counter()
    nodes[shape.rollout_pool] += shape.rollout_nodes
    nodes[shape.training_pool] += shape.training_nodes
    return +nodes


def shapes(jobs: Sequence[Job], training_slowdown: float | None) -> list[Shape]:
    """Worker sets for the jobs: disaggregated, training nodes alone and, with a slowdown, rollout nodes alone."""
    types: set[Shape] = set()
    for job in jobs:
        rollout, training = job.rollout, job.training
        types.add(Shape(rollout.nodes, training.nodes, rollout.pool, training.pool))
        if job.staleness:
            continue
        types.add(Shape(0, job.colocated.nodes if job.colocated else training.nodes, "", training.pool))
        if training_slowdown is not None:
            types.add(Shape(rollout.nodes, 0, rollout.pool, ""))
    return sorted(types)


def fastest_mode(job: Job, shape: Shape, cluster: Cluster, training_slowdown: float | None) -> RunMode | None:
    """The fastest mode of a job on a worker set; None where it has none or a node has too little memory."""
    modes = [mode for mode in _modes(job, shape, training_slowdown) if fits([mode], shape, cluster)]
    return min(modes, key=lambda mode: mode.iteration_s, default=None)


def speeds(jobs: Sequence[Job], modes: Sequence[Sequence[RunMode | None]]) -> Floats:
    """(J, K) iterations on each type per iteration alone on the job's own nodes; 0 where it cannot run."""
    return np.array(
        [[job.solo_s / mode.iteration_s if mode else 0.0 for mode in row] for job, row in zip(jobs, modes, strict=True)]
    )


def _modes(job: Job, shape: Shape, training_slowdown: float | None) -> list[RunMode]:
    rollout_nodes = shape.rollout_nodes if shape.rollout_pool == job.rollout.pool else 0
    training_nodes = shape.training_nodes if shape.training_pool == job.training.pool else 0
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
        return modes  # on the same nodes its phases would take turns
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


def fits(modes: Sequence[RunMode], shape: Shape, cluster: Cluster) -> bool:
    """Whether jobs can be resident on the same worker set."""
    limits_gb: dict[str, float | None] = {}
    for side, name in (("rollout", shape.rollout_pool), ("training", shape.training_pool)):
        if name:
            pool = cluster.pools[name]
            limits_gb |= {f"{side}_gb": pool.node_memory_gb, f"{side}_device_gb": pool.device_memory_gb}
    return all(
        sum(getattr(mode, name) for mode in modes) <= limit_gb * (1 + TOLERANCE)
        for name, limit_gb in limits_gb.items()
        if limit_gb is not None
    )
