"""The pools of a run: their numbers of nodes, their limits as policies see them, and whether a job fits into them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from rollmux_processes import same_host

from rollmux_env.cluster.demand import demand_of
from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import ONE_DEVICE, Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from rollmux_env.keys.job import Job
from runtime.engines.memory import USUAL
from runtime.gpus import find_gpus
from runtime.jobs.spec import JobSpec, RayJob
from runtime.machine import Node, Pool
from runtime.machines.nodes import POOLS

_GIB = 1 << 30
_USABLE = 0.9  # share of a node's memory for jobs; the rest is for Ray and the system
_NO_SHAPES = "shapes: do not go with one device, where a job has all nodes of its group"
_MIGRATION_S = 30.0  # default of the pause that a policy assumes for a move


def nodes_wanted(cluster: Cluster | None, jobs: Sequence[JobSpec]) -> dict[Pool, int]:
    """Return the number of nodes of each pool into which this machine is divided: as in the file, else as the largest job asks."""
    counts: dict[Pool, int] = {"rollout": 0, "training": 0}
    pools: Collection[Pool] = cluster.sides if cluster else POOLS
    for pool in pools:
        most: int | None = cluster.pools[pool].max_nodes if cluster else None
        counts[pool] = most or max((nodes for job in jobs for _, side, nodes in job.nodes_of_shapes() if side == pool), default=1)
    return counts


def cluster_of(
    cluster: Cluster | None,
    jobs: Sequence[JobSpec],
    nodes: Sequence[Node],
    say: Callable[[str], None] = lambda _: None,
    gpu_gb: float | None = None,
) -> Cluster:
    """Return the cluster as the policy sees it: stated prices and limits, with the nodes and memory that are present.

    Without stated prices, a node costs 1 $/h, so that dollars are node-hours.

    Args:
        cluster: Cluster of the file, or None.
        jobs: Jobs of the run.
        nodes: Nodes that are present.
        say: Callback for a line if there is one pool and the file does not ask for that.
        gpu_gb: Memory of the smallest GPU in GB, or None if unknown.

    Raises:
        InputError: If a job asks for more nodes than there are; one line.
    """
    plain = PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0)
    cluster = cluster or Cluster(rollout=plain, training=plain, migration_s=_MIGRATION_S)
    there = Counter(node.pool for node in nodes)
    if not cluster.one_device and not there["rollout"]:
        say("one GPU: rollouts and trainings take turns on it, as with one_device: true")
        cluster = cluster.model_copy(update={"one_device": True})
    for job in jobs:
        if cluster.one_device and job.shapes:
            raise InputError(f"job {job.id}: {_NO_SHAPES}")
        if problem := too_few_nodes(job, {pool: there[pool] for pool in cluster.sides}):
            raise InputError(f"job {job.id}: {problem}")
    room = device_room(jobs, nodes, gpu_gb)
    pools: dict[str, PoolSpec] = {}
    for pool in cluster.sides:
        spec = cluster.pools[pool]
        limits = {
            "max_nodes": min(spec.max_nodes or there[pool], there[pool]),
            "node_memory_gb": _node_memory_gb(pool, nodes, spec.node_memory_gb),
            "device_memory_gb": spec.device_memory_gb if spec.device_memory_gb is not None else room.get(pool),
        }
        pools[pool] = spec.model_copy(update=limits)
    return cluster.with_pools(pools)


def _node_memory_gb(pool: Pool, nodes: Sequence[Node], stated_gb: float | None) -> float | None:
    """Return the memory for jobs on the smallest node of a pool in GB, or None if unknown."""
    known_gb = [_USABLE * node.memory_gb for node in nodes if node.pool == pool and node.memory_gb]
    return min(known_gb if stated_gb is None else [*known_gb, stated_gb], default=None)


def too_few_nodes(spec: JobSpec, there: Mapping[str, int], left: str = "") -> str | None:
    """Return which phase or shape of a job asks for more nodes than its pool has, as a line, or None.

    Args:
        spec: The job.
        there: Number of nodes by pool; other pools are not checked.
        left: Suffix of the line, if there were more nodes before.
    """
    for where, pool, asks in spec.nodes_of_shapes():
        if asks > there.get(pool, asks):
            return f"{where}: asks for {asks} nodes; there are {there[pool]} of this pool{left}"
    return None


def beyond(spec: JobSpec, cluster: Cluster, policy: str, left: Mapping[str, int]) -> str | None:
    """Return the reason why a job can never be placed, whatever its user's quota is, as a line, or None.

    Args:
        spec: The job.
        cluster: Cluster with its limits.
        policy: Name of the placement policy.
        left: Number of nodes, by pool, that are not lost.
    """
    if spec.staleness and cluster.one_device:
        return f"staleness: does not go with one device: {ONE_DEVICE}"
    if spec.staleness and policy.partition(",")[0] == "colocated":
        return "staleness: does not go with the policy colocated, where phases take turns on one pool"
    if spec.shapes and cluster.one_device:
        return _NO_SHAPES
    for pool in cluster.sides:
        if (asks := getattr(spec, pool).nodes) > left[pool]:
            return f"{pool}.nodes: asks for {asks} nodes; there are {left[pool]} of this pool left"
    return None


def too_large(job: Job, cluster: Cluster) -> str | None:
    """Return the reason why a job does not fit on any node, as a line, or None."""
    demand = demand_of(job, cluster)
    for pool, limits in cluster.pools.items():
        need_gb, limit_gb = getattr(demand, f"{pool}_gb"), limits.node_memory_gb
        if limit_gb is not None and need_gb > limit_gb:
            return f"it keeps {need_gb:.2f} GB of host memory on a {pool} node, which has {limit_gb:.2f} GB for jobs"
        need_gb, limit_gb = getattr(demand, f"{pool}_device_gb"), limits.device_memory_gb
        if limit_gb is not None and need_gb > limit_gb:
            return f"it keeps {need_gb:.2f} GB of each GPU of a {pool} node, where jobs may keep {limit_gb:.2f} GB"
    return None


def check_pools(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Check that a run can continue with the present nodes.

    Raises:
        InputError: If it began with two pools, and this machine has one GPU.
    """
    for pool in cluster.sides:
        if not any(node.pool == pool for node in nodes):
            raise InputError(f"there is no {pool} node now: this machine has one GPU, and the run was begun with two pools")


def device_room(specs: Sequence[JobSpec], nodes: Sequence[Node], gpu_gb: float | None) -> dict[Pool, float]:
    """Return the memory of each GPU for the state of jobs between their phases, by pool, in GB. CPU nodes have no entry.

    On rollout nodes it is what an awake engine leaves (`rollout.engine_options.gpu_memory`). On training nodes it is the whole GPU,
    since the memory of an update is not known in advance.

    Args:
        specs: Jobs of the run.
        nodes: Nodes of the run.
        gpu_gb: Memory of the smallest GPU in GB, or None if unknown.
    """
    if gpu_gb is None:
        return {}
    shares = (spec.rollout.engine_options.gpu_memory if isinstance(spec, RayJob) else USUAL for spec in specs)
    share = max((one or USUAL for one in shares), default=USUAL)
    shared = {"rollout": (1 - share) * gpu_gb, "training": gpu_gb}
    if all(node.pool == "training" for node in nodes):  # engines run there
        shared = {"training": shared["rollout"]}
    return {pool: shared[pool] for pool in POOLS if pool in shared and any(node.gpus for node in nodes if node.pool == pool)}


def gpu_memory_gb(nodes: Sequence[Node]) -> float | None:
    """Return the memory of this machine's smallest GPU in GB, or None if there is none or a node is on another machine."""
    here = all(same_host(node.host, os.uname().nodename) for node in nodes)
    gpus = find_gpus() if here and any(node.gpus for node in nodes) else []
    return min((gpu.memory_gb * _GIB / 1e9 for gpu in gpus), default=None)
