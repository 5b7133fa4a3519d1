"""Demands of jobs and limits of pools in the form of the kernel: columns of the job table, and `Limits`.

On one device (`cluster.one_device`) an iteration is a single phase for the kernel: rollout and training, one after the other, on
all nodes of the group's only pool. Code outside the kernel still distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.tables import LIMITS, POOL, UNUSED, Limits, Records
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job


class Demand(NamedTuple):
    """Phases of a job in one shape, as the pools have to serve them.

    Attributes:
        rollout_pool: Name of the pool for rollouts.
        training_pool: Name of the pool for trainings.
        rollout_nodes: Number of nodes for rollouts.
        training_nodes: Number of nodes for trainings.
        rollout_s: Worst case of a rollout on these nodes, seconds.
        training_s: Worst case of a training on these nodes, seconds.
        rollout_gb: Host memory on each rollout node, GB.
        training_gb: Host memory on each training node, GB.
        rollout_device_gb: Memory on each GPU of rollout nodes that the job keeps between its phases, GB.
        training_device_gb: Memory on each GPU of training nodes that the job keeps between its phases, GB.
        by_nodes: Pairs of a node count and the training seconds from that count on, ascending.
        rollout_warm_s: Warm start of a rollout, seconds.
        training_warm_s: Warm start of a training, seconds.
    """

    rollout_pool: str
    training_pool: str
    rollout_nodes: int
    training_nodes: int
    rollout_s: float
    training_s: float
    rollout_gb: float
    training_gb: float
    rollout_device_gb: float
    training_device_gb: float
    by_nodes: tuple[tuple[int, float], ...]
    rollout_warm_s: float
    training_warm_s: float


def demand_of(job: Job, cluster: Cluster | None, shape: int = 0) -> Demand:
    """Return the demand of a job in a shape on a cluster. None for the cluster means one with two pools."""
    rollout, training = job.phases(shape)
    times, memory_gb = (rollout.worst_case_s, training.worst_case_s), (rollout.host_memory_gb, training.host_memory_gb)
    device_gb = (rollout.device_gb, training.device_gb)
    if cluster is None or not cluster.one_device:
        warm_s = (rollout.switch.warm_s, training.switch.warm_s)
        nodes = (rollout.pool, training.pool, rollout.nodes, training.nodes)
        return Demand(*nodes, *times, *memory_gb, *device_gb, tuple(training.by_nodes.items()), *warm_s)
    by_nodes = tuple((nodes, rollout.worst_case_s + seconds) for nodes, seconds in training.by_nodes.items())
    # A training directly follows the rollout of the same job, so it needs no warm start.
    memory = (0.0, sum(memory_gb), 0.0, sum(device_gb))
    return Demand(training.pool, training.pool, 0, training.nodes, 0.0, sum(times), *memory, by_nodes, 0.0, rollout.switch.warm_s)


def nodes_asked(job: Job, cluster: Cluster) -> dict[str, int]:
    """Return the nodes that a job asks for, by name of the pool."""
    demand, nodes = demand_of(job, cluster), dict.fromkeys(cluster.pools, 0)
    nodes[demand.rollout_pool] += demand.rollout_nodes
    nodes[demand.training_pool] += demand.training_nodes
    return nodes


def usd_per_hour(demand: Demand, cluster: Cluster, rollout_nodes: int, training_nodes: int) -> float:
    """Return the price of rollout and training nodes of the pools of a demand, $/h."""
    rollout, training = cluster.pools[demand.rollout_pool], cluster.pools[demand.training_pool]
    return rollout_nodes * rollout.usd_per_node_hour + training_nodes * training.usd_per_node_hour


def solo_usd_per_hour(job: Job, cluster: Cluster) -> float:
    """Return the price of all nodes that a job asks for, as it would pay without sharing them, $/h."""
    demand = demand_of(job, cluster)
    return usd_per_hour(demand, cluster, demand.rollout_nodes, demand.training_nodes)


def write_known(jobs: Records, row: int, job: Job, demand: Demand, pools: Mapping[str, int], switches: bool) -> None:
    """Write the demand and the limits of a job into a row of the job table, for the shape that the row has.

    Args:
        jobs: The job table.
        row: Row to write.
        job: The job.
        demand: Demand of the job in this shape.
        pools: Numbers of the pools by name.
        switches: Whether switches are planned. Otherwise they take no time.
    """
    shape, solo_s, steps = int(jobs["of_shape"][row]), job.solo_s, jobs["rescale_s"].shape[1]
    values: dict[str, Any] = demand._asdict()
    by_nodes = values.pop("by_nodes")
    unused = steps - len(by_nodes)
    values |= {
        "rollout_pool": pools[demand.rollout_pool],
        "training_pool": pools[demand.training_pool],
        "sync_s": job.sync_s,
        "staleness": job.staleness,
        "solo_s": solo_s,
        "alone_s": job.iteration_s(demand.rollout_s, demand.training_s, job.sync_s) if shape else solo_s,
        **dict.fromkeys(LIMITS, job.slo * solo_s),
        "rescale_nodes": (*(nodes for nodes, _ in by_nodes), *[UNUSED] * unused),
        "rescale_s": (*(seconds for _, seconds in by_nodes), *jobs["rescale_s"][row, steps - unused :].tolist()),
        "movable": job.movable,
        "cold_s": sum(phase.switch.cold_s for phase in job.phases(shape)),
    }
    if not switches:
        values |= {"rollout_warm_s": 0.0, "training_warm_s": 0.0, "cold_s": 0.0}
    jobs[[*values]][row] = tuple(values.values())  # one assignment takes a quarter of the time of one for each column


def limits_of(cluster: Cluster) -> Limits:
    """Return the prices and limits of a cluster's pools, in their order, and of its groups."""
    pools = np.zeros(len(cluster.pools), dtype=POOL)
    for number, pool in enumerate(cluster.pools.values()):
        limits = (pool.max_nodes, pool.node_memory_gb, pool.device_memory_gb)
        pools[number] = (pool.usd_per_node_hour, *(inf if limit is None else limit for limit in limits))
    return Limits(pools, cluster.max_group_size)
