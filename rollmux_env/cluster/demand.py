"""What a job asks of the pools, and what these have, as the kernel counts it: columns of the job table, and limits.

On one device (`cluster.one_device`) an iteration is a single phase to the kernel: both phases, one after the other, on all nodes of
the group's only pool. Whoever is not the kernel still knows the two.
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
    """A job's phases on either pool, in a shape.

    Attributes:
        rollout_pool, training_pool: names of the pools. rollout_nodes, training_nodes: nodes that they ask for. rollout_s,
            training_s: worst cases on so many, seconds.
        rollout_gb, training_gb: host memory per node, GB. rollout_device_gb, training_device_gb: memory that the job keeps on each
            GPU between its phases, GB. by_nodes: ((nodes, training seconds from so many on), ...), ascending.
        rollout_warm_s, training_warm_s: warm starts, seconds.
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
    """What a job in a shape asks of the pools of a cluster, by default of one with two."""
    rollout, training = job.phases(shape)
    times, memory_gb = (rollout.worst_case_s, training.worst_case_s), (rollout.host_memory_gb, training.host_memory_gb)
    device_gb = (rollout.device_gb, training.device_gb)
    if cluster is None or not cluster.one_device:
        warm_s = (rollout.switch.warm_s, training.switch.warm_s)
        nodes = (rollout.pool, training.pool, rollout.nodes, training.nodes)
        return Demand(*nodes, *times, *memory_gb, *device_gb, tuple(training.by_nodes.items()), *warm_s)
    by_nodes = tuple((nodes, rollout.worst_case_s + seconds) for nodes, seconds in training.by_nodes.items())
    # A training comes behind its own rollout, and finds its job there.
    memory = (0.0, sum(memory_gb), 0.0, sum(device_gb))
    return Demand(training.pool, training.pool, 0, training.nodes, 0.0, sum(times), *memory, by_nodes, 0.0, rollout.switch.warm_s)


def nodes_asked(job: Job, cluster: Cluster) -> dict[str, int]:
    """Nodes that a job asks for, by name of the pool."""
    demand, nodes = demand_of(job, cluster), dict.fromkeys(cluster.pools, 0)
    nodes[demand.rollout_pool] += demand.rollout_nodes
    nodes[demand.training_pool] += demand.training_nodes
    return nodes


def usd_per_hour(demand: Demand, cluster: Cluster, rollout_nodes: int, training_nodes: int) -> float:
    """Dollars per hour of so many nodes of the pools that a job asks for."""
    rollout, training = cluster.pools[demand.rollout_pool], cluster.pools[demand.training_pool]
    return rollout_nodes * rollout.usd_per_node_hour + training_nodes * training.usd_per_node_hour


def solo_usd_per_hour(job: Job, cluster: Cluster) -> float:
    """Dollars per hour of the nodes that a job asks for, were they its own."""
    demand = demand_of(job, cluster)
    return usd_per_hour(demand, cluster, demand.rollout_nodes, demand.training_nodes)


def write_known(jobs: Records, row: int, job: Job, demand: Demand, pools: Mapping[str, int], switches: bool) -> None:
    """Write what is known of a job into a row of the table, in the shape that the row has.

    Args:
        demand: what the job asks for in that shape.
        pools: numbers of the pools, by name.
        switches: switches are planned.
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
    jobs[[*values]][row] = tuple(values.values())  # all at once: one after the other takes four times as long


def limits_of(cluster: Cluster) -> Limits:
    """Prices and limits of a cluster's pools, in their order, and of its groups."""
    pools = np.zeros(len(cluster.pools), dtype=POOL)
    for number, pool in enumerate(cluster.pools.values()):
        limits = (pool.max_nodes, pool.node_memory_gb, pool.device_memory_gb)
        pools[number] = (pool.usd_per_node_hour, *(inf if limit is None else limit for limit in limits))
    return Limits(pools, cluster.max_group_size)
