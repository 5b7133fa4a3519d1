"""The paper's hardware and job types (RollMux, arXiv 2512.11306), as data.

Printed there: hardware and prices (Table 1), host memory (Table 2), cold and warm starts (Figure 4, its numbers). Phase times are
those of its authors' profile, but for one (`stream_training_s` of `rollmux_env/published/rollmux.toml`). 4B and 8B have no column
in the tables; their memory and starts are interpolated linearly in the number of parameters between the sizes on either side.
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
    """Parameters of a model of a size such as 7B."""
    return int(size.partition("B")[0])


MEMORY_GB = {_billions(size): gb for size, gb in _ROLLMUX.table("memory_gb", tuple[float, float])}
"""Parameters in billions: GB of host memory that keep one actor resident on a node, rollout and training."""

SWITCH_S = {_billions(size): seconds for size, seconds in _ROLLMUX.table("switch_s", tuple[float, float, float, float])}
"""Parameters in billions: seconds of a phase's start on a node, rollout cold and warm, training cold and warm."""

PUBLISHED_S = dict(_ROLLMUX.table("phases_s", tuple[float, float, float, float]))
"""Type (size, longest response): seconds of both phases on a node of each pool, then on the training node alone."""

_OF_STREAMS_S = {kind: seconds for kind, (seconds,) in _ROLLMUX.table("stream_training_s", tuple[float])}

PHASES_S = {
    kind: (rollout_s, _OF_STREAMS_S.get(kind, training_s), *together)
    for kind, (rollout_s, training_s, *together) in PUBLISHED_S.items()
}
"""The same as streams have them."""


def _pool(gpu: str) -> Pool:
    return Pool(gpu=gpu, gpus_per_node=8, usd_per_gpu_hour=GPUS[gpu].usd_per_hour or 0.0, node_memory_gb=2000)


ROLLOUT_POOL, TRAINING_POOL = _pool("H20"), _pool("H800")


def paper_cluster(max_group_size: int = 5, others: Mapping[str, Pool] | None = None) -> Cluster:
    """Nodes of 8 H20 for rollouts and of 8 H800 for training, at the paper's prices, as many as are asked for.

    Args:
        others: pools beside these two, by name.
    """
    if not others:
        return Cluster(rollout=ROLLOUT_POOL, training=TRAINING_POOL, max_group_size=max_group_size)
    pools = {"rollout": ROLLOUT_POOL, "training": TRAINING_POOL, **others}
    return Cluster.model_validate({"pools": pools, "max_group_size": max_group_size})


def memory_gb(billions: int) -> tuple[float, float]:
    """GB of host memory that keep a job of that size resident on a rollout node and on a training node."""
    rollout, training = _between_sizes(MEMORY_GB, billions)
    return rollout, training


def switches(billions: int) -> tuple[Switch, Switch]:
    """Warm and cold starts of the rollout and of the training of a job of that size."""
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
    """`rollout` and `training` of a job with a model of that size, with its host memory.

    Args:
        seconds: of the rollout and of the training. with_switches: give them the warm and cold starts of the size. nodes: of the
            rollout. by_nodes: seconds of the training on more nodes.
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
    """A job of a type of the catalogue.

    Args:
        kind: a key of `PHASES_S`, such as `7B-8k`.
        iterations, duration_s: its stay; exactly one of the two.
        with_switches: give it the warm and cold starts of its size.
        training_nodes: other than the catalogue's one, or two for 32B; the phase's seconds stay the same.

    Raises:
        InputError: no such type.
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
    """A row of a table by size, interpolated linearly between published sizes, to one place."""
    if billions in table:
        return table[billions]
    low = max(size for size in table if size < billions)
    high = min(size for size in table if size > billions)
    share = (billions - low) / (high - low)
    return tuple(round(a + share * (b - a), 1) for a, b in zip(table[low], table[high], strict=True))
