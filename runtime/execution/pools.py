"""The pools of a run: how many nodes of each, and what the policy sees of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from runtime.doctor import find_gpus
from runtime.engines.memory import USUAL
from runtime.execution.nodes import POOLS
from runtime.jobs.shapes import nodes_of_shapes
from runtime.jobs.spec import JobSpec
from runtime.machine import Node, Pool

_GIB = 1 << 30
_USABLE = 0.9  # of a node's memory; the rest is for Ray and the system
_MIGRATION_S = 30.0  # pause of a moved job that a policy reckons with, where the file says nothing


def nodes_wanted(cluster: Cluster | None, jobs: Sequence[JobSpec]) -> dict[Pool, int]:
    """Nodes that this machine is carved into: what the file says, else as many as the largest job asks for."""
    counts: dict[Pool, int] = {"rollout": 0, "training": 0}
    pools: Collection[Pool] = cluster.sides if cluster else POOLS
    for pool in pools:
        most: int | None = cluster.pools[pool].max_nodes if cluster else None
        counts[pool] = most or max((nodes for job in jobs for _, side, nodes in nodes_of_shapes(job) if side == pool), default=1)
    return counts


def cluster_of(
    cluster: Cluster | None,
    jobs: Sequence[JobSpec],
    nodes: Sequence[Node],
    say: Callable[[str], None] = lambda _: None,
    gpu_gb: float | None = None,
) -> Cluster:
    """What the policy sees: the given prices and limits, with as many nodes and as much memory as there is.

    Without any a node costs 1 $/h, so that dollars are node-hours.

    Args:
        say: takes a line where there is one pool, and nobody has asked for that. gpu_gb: of the smallest GPU, where it is known.

    Raises:
        InputError: a job asks for more nodes than there are; one line.
    """
    plain = PoolSpec(gpus_per_node=1, usd_per_gpu_hour=1.0)
    cluster = cluster or Cluster(rollout=plain, training=plain, migration_s=_MIGRATION_S)
    if not cluster.one_device and not any(node.pool == "rollout" for node in nodes):
        say("one GPU: rollouts and trainings take turns on it, as with one_device: true")
        cluster = cluster.model_copy(update={"one_device": True})
    shaped = next((job for job in jobs if job.shapes), None)
    if cluster.one_device and shaped is not None:
        raise InputError(f"job {shaped.id}: shapes: do not go with one device, where a job has all nodes of its group")
    pools: dict[str, PoolSpec] = {}
    room = device_room(jobs, nodes, gpu_gb)
    for pool in cluster.sides:
        spec = cluster.pools[pool]
        own = [node for node in nodes if node.pool == pool]
        for job in jobs:
            for where, side, nodes_asked in nodes_of_shapes(job):
                if side == pool and nodes_asked > len(own):
                    raise InputError(f"job {job.id}: {where}: asks for {nodes_asked} nodes; there are {len(own)} of this pool")
        memory_gb = [_USABLE * node.memory_gb for node in own if node.memory_gb]  # of other hosts nobody may know it
        memory_gb += [spec.node_memory_gb] if spec.node_memory_gb is not None else []
        limits = {
            "max_nodes": min(spec.max_nodes or len(own), len(own)),
            "node_memory_gb": min(memory_gb, default=None),
            "device_memory_gb": spec.device_memory_gb if spec.device_memory_gb is not None else room.get(pool),
        }
        pools[pool] = spec.model_copy(update=limits)
    return cluster.with_pools(pools)


def check_pools(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Check that a run can go on with the nodes that there are now.

    Raises:
        InputError: it was begun with two pools, and there is one GPU.
    """
    for pool in cluster.sides:
        if not any(node.pool == pool for node in nodes):
            raise InputError(f"there is no {pool} node now: this machine has one GPU, and the run was begun with two pools")


def device_room(specs: Sequence[JobSpec], nodes: Sequence[Node], gpu_gb: float | None) -> dict[Pool, float]:
    """GB of each GPU for what jobs keep there between their phases, by pool; nothing of CPU nodes, or where nobody knows.

    Of rollout nodes it is what an awake engine leaves (`rollout.engine_options.gpu_memory`); of training nodes all of a GPU, since
    what an update takes is not known before.

    Args:
        gpu_gb: of the smallest GPU; None where it is not known.
    """
    if gpu_gb is None:
        return {}
    share = max((spec.rollout.engine_options.gpu_memory or USUAL for spec in specs), default=USUAL)
    shared = {"rollout": (1 - share) * gpu_gb, "training": gpu_gb}
    if all(node.pool == "training" for node in nodes):  # engines run there
        shared = {"training": shared["rollout"]}
    return {pool: shared[pool] for pool in POOLS if pool in shared and any(node.gpus for node in nodes if node.pool == pool)}


def gpu_memory_gb(nodes: Sequence[Node], here: bool) -> float | None:
    """GB of the smallest GPU; None where there is none, or the nodes are on other machines."""
    gpus = find_gpus() if here and any(node.gpus for node in nodes) else []
    return min((gpu.memory_gb * _GIB / 1e9 for gpu in gpus), default=None)
