"""Predictions of the phase-time model for generated jobs: phase times on other nodes, and syncs.

A job's type, such as `7B-8k` in its id, gives its model and its longest response. Jobs of profiles have no type and count as 7B-8k.
All nodes use the calibration of the paper's jobs, so that kinds of GPUs are comparable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Pool, Side
from rollmux_env.keys.job import Job
from rollmux_env.timing.calibration import ROLLMUX
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.rollouts import Responses
from rollmux_env.timing.shapes import PhaseTime, PoolNodes, parallelisms, rollout_time, training_time
from rollmux_env.timing.weights import sync_s
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads.catalogue import ROLLOUT_POOL, TRAINING_POOL

RESPONSES = Responses(batch=256, prompt_tokens=512)  # size of a rollout of the paper's jobs
_OWN = {"rollout": ROLLOUT_POOL, "training": TRAINING_POOL}


def model_times(side: Side, job: Job, pool: Pool | None = None, n: float = 1.0) -> float | None:
    """Return the factor of a phase's duration on other nodes, or None if the phase does not fit there.

    Args:
        side: Side of the phase.
        job: Job with its numbers of nodes.
        pool: Other pool, or None for the job's own.
        n: Factor of the number of nodes.

    Raises:
        InputError: If the model does not know the pool's GPU.
    """
    nodes = getattr(job, side).nodes
    size, cap = _type_of(job)
    own_s = _fastest_s(side, size, cap, _OWN[side], nodes)
    there_s = _fastest_s(side, size, cap, pool or _OWN[side], int(nodes * n))
    return None if own_s is None or there_s is None else there_s / own_s


def model_sync_s(job: Job) -> float:
    """Return the seconds of a job's sync between its own nodes."""
    rollout, training = _nodes("rollout", ROLLOUT_POOL, job.rollout.nodes), _nodes("training", TRAINING_POOL, job.training.nodes)
    weights_gb = SHAPES[_type_of(job)[0]].parameters * rollout.hardware.number_bytes / 1e9
    return sync_s(weights_gb, training.hardware, training.devices, rollout.hardware, rollout.devices, rollout.number)


def _type_of(job: Job) -> tuple[str, int]:
    """Return the size of a job's model and the length of its longest response in tokens."""
    kind = re.match(r"([0-9]+B)-([0-9]+)k", job.id)
    return (kind[1], 1024 * int(kind[2])) if kind else ("7B", 8192)


def _nodes(name: str, pool: Pool, number: int) -> PoolNodes:
    if pool.gpu not in GPUS:
        raise InputError(f"third_pool.pool.gpu: {not_one_of(pool.gpu, GPUS)}")
    return PoolNodes(name, achieved(pool.gpu, GPUS[pool.gpu], ROLLMUX), number, pool.gpus_per_node)


@cache
def _fastest_s(side: Side, size: str, cap: int, pool: Pool, number: int) -> float | None:
    """Return the seconds of the fastest parallelism that fits, or None if none fits."""
    model, nodes = SHAPES[size], _nodes(side, pool, number)
    time_of = rollout_time if side == "rollout" else training_time

    def times() -> Iterator[PhaseTime]:
        for parallelism in parallelisms(nodes, model.layers):
            with suppress(InputError):  # no room for a cache
                yield time_of(model, nodes, parallelism, RESPONSES, cap)

    fitting = [time.worst_case_s for time in times() if time.device_gb <= nodes.hardware.memory_gb]
    return min(fitting, default=None)
