"""Conversion of an allocator's plans into a scenario with one job: nodes, seconds and host memory of both phases."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from rollmux_env.allocation.allocation import Allocation
from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster, Pool, Side
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario
from rollmux_env.timing.hardware import GPUS
from rollmux_env.timing.weights import rollout_memory_gb, training_memory_gb

ITERATIONS, SLO = 100, 1.5  # defaults of the written job, for the user to edit


def make_allocated_scenario(name: str, allocations: Sequence[Allocation]) -> Scenario:
    """Return a scenario with one job and a cluster of the budgets' GPUs.

    The first allocation becomes the job as written, the others its shapes. The seconds are those of the plans, for responses of
    average length. An update of the weights occupies the rollout nodes, so it is counted as part of the rollout. The cluster has no
    limit on the number of nodes.

    Args:
        name: Identifier of the job.
        allocations: One or more plans for the same work. All have machines of the same size.

    Raises:
        InputError: If a plan has GPUs of several types on one side.
    """
    types = [(_type(each.training.gpus, "trains"), _type(each.rollout_gpus, "samples")) for each in allocations]
    pools = {"rollout": types[0][1], "training": types[0][0]}
    for gpu in (gpu for sides in types for gpu in sides):
        if gpu not in pools.values():
            pools[gpu] = gpu
    first, *shapes = [_phases(each, pools) for each in allocations]
    cluster = Cluster.model_validate({"pools": {pool: _pool(gpu, allocations[0].budget.machine) for pool, gpu in pools.items()}})
    work = allocations[0].work
    values = {"id": name, "arrival_s": 0.0, "iterations": ITERATIONS, "slo": SLO, "staleness": work.staleness, **first}
    return Scenario(version=1, cluster=cluster, jobs=(Job.model_validate(values | ({"shapes": shapes} if shapes else {})),))


def _type(gpus: dict[str, int], does: str) -> str:
    if len(gpus) != 1:
        raise InputError(f"--out: the plan {does} on {' and '.join(gpus)}; a job's phase has nodes of one kind: try another budget")
    return next(iter(gpus))


def _pool(gpu: str, machine: int) -> Pool:
    return Pool(gpu=gpu, gpus_per_node=machine, usd_per_gpu_hour=GPUS[gpu].usd_per_hour or 0.0)


def _phases(allocation: Allocation, pools: dict[str, str]) -> dict[str, Any]:
    """Return the keys `rollout` and `training` of a job or of a shape."""
    work, machine, training = allocation.work, allocation.budget.machine, allocation.training
    nodes = ceil(sum(training.gpus.values()) / machine)
    replica, _ = max(allocation.replicas, key=lambda pair: pair[1])
    named = {gpu: pool for pool, gpu in reversed(pools.items())}

    def pool(side: Side, gpus: dict[str, int]) -> dict[str, str]:
        name = named[next(iter(gpus))]
        return {} if name == side else {"pool": name}  # the default pool of a side is not written, as in files of real runs

    return {
        "rollout": pool("rollout", allocation.rollout_gpus)
        | {
            "nodes": ceil(sum(allocation.rollout_gpus.values()) / machine),
            "worst_case_s": round(allocation.rollout_s, 3),
            "host_memory_gb": round(rollout_memory_gb(work.model, machine, sum(replica.gpus.values())), 1),
        },
        "training": pool("training", training.gpus)
        | {
            "nodes": nodes,
            "worst_case_s": round(allocation.training_s, 3),
            "host_memory_gb": round(training_memory_gb(work.model, machine, nodes), 1),
        },
    }
