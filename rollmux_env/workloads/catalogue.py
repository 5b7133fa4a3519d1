"""The paper's hardware and job types (RollMux, arXiv 2512.11306), as data.

The paper prints hardware and prices (Table 1), host memory (Table 2), and cold and warm starts (numbers in Figure 4). Phase times
are those of its authors' profile, with one exception (`stream_training_s` of `rollmux_env/published/rollmux.toml`). The tables have
no column for 4B and 8B; their memory and starts are interpolated linearly in the number of parameters between the adjacent sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Colocated, Job
from rollmux_env.keys.phases import Phase, Switch, Training
from rollmux_env.published import source
from rollmux_env.timing.hardware import GPUS
from rollmux_env.validation_errors import not_one_of

_ROLLMUX = source("rollmux")


def _billions(size: str) -> int:
    """Return the parameters of a model, in billions, from a size such as 7B."""
    return int(size.partition("B")[0])


MEMORY_GB = {_billions(size): gb for size, gb in _ROLLMUX.table("memory_gb", tuple[float, float])}
"""Host memory in GB that keeps one actor resident on a node, by parameters in billions: rollout and training."""

SWITCH_S = {_billions(size): seconds for size, seconds in _ROLLMUX.table("switch_s", tuple[float, float, float, float])}
"""Seconds of a phase's start on a node, by parameters in billions: rollout cold and warm, training cold and warm."""

PUBLISHED_S = dict(_ROLLMUX.table("phases_s", tuple[float, float, float, float]))
"""Seconds of both phases by type (size and longest response): on a node of each pool, then on the training node alone."""

_OF_STREAMS_S = {kind: seconds for kind, (seconds,) in _ROLLMUX.table("stream_training_s", tuple[float])}

PHASES_S = {
    kind: (rollout_s, _OF_STREAMS_S.get(kind, training_s), *together)
    for kind, (rollout_s, training_s, *together) in PUBLISHED_S.items()
}
"""The same with the training times that workloads use."""


def _pool(gpu: str) -> Pool:
    return Pool(gpu=gpu, gpus_per_node=8, usd_per_gpu_hour=GPUS[gpu].usd_per_hour or 0.0, node_memory_gb=2000)


ROLLOUT_POOL, TRAINING_POOL = _pool("H20"), _pool("H800")


def paper_cluster(max_group_size: int = 5, others: Mapping[str, Pool] | None = None) -> Cluster:
    """Return a cluster of nodes of 8 H20 for rollouts and of 8 H800 for training, at the paper's prices and of unlimited size.

    Args:
        max_group_size: Largest number of jobs in a co-execution group.
        others: Further pools by name, or None.
    """
    if not others:
        return Cluster(rollout=ROLLOUT_POOL, training=TRAINING_POOL, max_group_size=max_group_size)
    pools = {"rollout": ROLLOUT_POOL, "training": TRAINING_POOL, **others}
    return Cluster.model_validate({"pools": pools, "max_group_size": max_group_size})


def memory_gb(billions: int) -> tuple[float, float]:
    """Return the host memory in GB that keeps a job resident on a rollout node and on a training node, by its model's size."""
    rollout, training = _between_sizes(MEMORY_GB, billions)
    return rollout, training


def switches(billions: int) -> tuple[Switch, Switch]:
    """Return the warm and cold starts of a job's rollout and training, by its model's size."""
    rollout_cold, rollout_warm, training_cold, training_warm = _between_sizes(SWITCH_S, billions)
    return Switch(warm_s=rollout_warm, cold_s=rollout_cold), Switch(warm_s=training_warm, cold_s=training_cold)


def phases(
    billions: int,
    seconds: Sequence[float],
    with_switches: bool,
    nodes: int = 1,
    training_nodes: int = 1,
    by_nodes: dict[int, float] | None = None,
) -> dict[str, Any]:
    """Return the keys `rollout` and `training` of a job, with the host memory of its model's size.

    Args:
        billions: Parameters of the model, in billions.
        seconds: Seconds of the rollout and of the training.
        with_switches: Whether the phases have the warm and cold starts of the size.
        nodes: Number of rollout nodes.
        training_nodes: Number of training nodes.
        by_nodes: Seconds of the training on more nodes, by their number, or None.
    """
    starts = switches(billions) if with_switches else (Switch(), Switch())
    rollout, training = (
        dict[str, Any](worst_case_s=phase_s, host_memory_gb=gb, switch=start)
        for phase_s, gb, start in zip(seconds, memory_gb(billions), starts, strict=True)
    )
    return {
        "rollout": Phase(nodes=nodes, **rollout),
        "training": Training(nodes=training_nodes, by_nodes=by_nodes or {}, **training),
    }


def make_job(
    kind: str,
    job_id: str,
    *,
    arrival_s: float = 0.0,
    slo: float = 1.5,
    iterations: int | None = None,
    duration_s: float | None = None,
    with_switches: bool = False,
    training_nodes: int | None = None,
) -> Job:
    """Return a job of a type of the catalogue.

    Args:
        kind: Job type, a key of `PHASES_S`, such as `7B-8k`.
        job_id: Identifier of the job.
        arrival_s: Time of the arrival, in seconds.
        slo: Largest acceptable slowdown.
        iterations: Stay as a number of iterations, or None if `duration_s` is given.
        duration_s: Stay in seconds, or None if `iterations` is given.
        with_switches: Whether the job has the warm and cold starts of its size.
        training_nodes: Number of training nodes, or None for the catalogue's: two for 32B, else one. The seconds stay the same.

    Raises:
        InputError: If the type is unknown.
    """
    if kind not in PHASES_S:
        raise InputError(f"type: {not_one_of(kind, PHASES_S)}")
    *seconds, colocated_rollout_s, colocated_training_s = PHASES_S[kind]
    billions = _billions(kind)
    nodes = 2 if billions == 32 else 1
    stay = {"iterations": iterations} if duration_s is None else {"duration_s": duration_s}
    return Job(
        id=job_id,
        arrival_s=arrival_s,
        slo=slo,
        **phases(billions, seconds, with_switches, nodes, training_nodes or nodes),
        colocated=Colocated(nodes=nodes, rollout_s=colocated_rollout_s, training_s=colocated_training_s),
        **stay,
    )


def _between_sizes(table: Mapping[int, tuple[float, ...]], billions: int) -> tuple[float, ...]:
    """Return a row of a table by size, interpolated linearly between published sizes and rounded to one decimal."""
    if billions in table:
        return table[billions]
    low = max(size for size in table if size < billions)
    high = min(size for size in table if size > billions)
    share = (billions - low) / (high - low)
    return tuple(round(a + share * (b - a), 1) for a, b in zip(table[low], table[high], strict=True))
