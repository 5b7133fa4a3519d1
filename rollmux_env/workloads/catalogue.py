"""The paper's hardware and job types (RollMux, arXiv 2512.11306), as data.

Printed there: hardware and prices (Table 1), host memory (Table 2), cold and warm starts (Figure 4, its numbers). Read off its
vector figures, to within 1 to 3%: the phase times. 4B and 8B have no column in the tables; their memory and starts are
interpolated linearly in the number of parameters between the sizes on either side.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Colocated, Job
from rollmux_env.keys.phases import Phase, Switch, Training
from rollmux_env.validation_errors import not_one_of

ROLLOUT_POOL = Pool(gpu="H20", gpus_per_node=8, usd_per_gpu_hour=1.85, node_memory_gb=2000)
TRAINING_POOL = Pool(gpu="H800", gpus_per_node=8, usd_per_gpu_hour=5.28, node_memory_gb=2000)

# Parameters in billions -> GB of host memory that keep one actor resident on a node: rollout, training.
MEMORY_GB = {3: (113.4, 156.2), 7: (275.7, 240.0), 14: (445.4, 456.1), 32: (490.3, 520.4), 70: (391.2, 458.7)}

# Parameters in billions -> seconds of a phase's start on a node: rollout cold, warm, training cold, warm.
SWITCH_S = {
    3: (25.3, 0.8, 26.7, 1.9),
    7: (38.8, 0.9, 32.7, 4.1),
    14: (60.4, 1.8, 59.0, 4.7),
    32: (81.7, 1.7, 81.2, 5.9),
    70: (135.8, 1.9, 116.0, 5.4),
}

# Type (size, longest response) -> seconds: rollout and training on a node of each pool, then both phases on the training node
# alone. 32B: two nodes of each pool. The sync is part of them.
PHASES_S = {
    "3B-4k": (79.3, 47.0, 157.0, 48.0),
    "3B-8k": (128.3, 71.3, 202.0, 69.4),
    "4B-4k": (121.5, 51.3, 105.8, 51.2),
    "4B-8k": (262.5, 86.8, 188.3, 86.7),
    "4B-16k": (496.0, 180.3, 349.5, 185.0),
    "4B-32k": (734.3, 464.7, 587.0, 465.5),
    "7B-4k": (80.5, 77.0, 138.8, 65.4),
    "7B-8k": (133.8, 112.8, 159.6, 98.2),
    "8B-4k": (140.6, 70.9, 101.6, 72.8),
    "8B-8k": (310.1, 120.5, 189.0, 119.3),
    "8B-16k": (580.5, 241.0, 354.0, 238.3),
    "8B-32k": (888.0, 559.5, 607.5, 559.5),
    "14B-4k": (145.0, 126.7, 136.2, 112.4),
    "14B-8k": (238.6, 197.4, 182.4, 173.6),
    "32B-4k": (165.3, 219.3, 173.7, 204.3),
    "32B-8k": (267.6, 361.8, 277.0, 271.3),
}


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
    rollout_s, training_s, colocated_rollout_s, colocated_training_s = PHASES_S[kind]
    billions = int(kind.partition("B")[0])
    nodes = 2 if billions == 32 else 1
    rollout_gb, training_gb = memory_gb(billions)
    rollout_switch, training_switch = switches(billions) if with_switches else (Switch(), Switch())
    stay = {"iterations": iterations} if duration_s is None else {"duration_s": duration_s}
    return Job(
        id=job_id,
        arrival_s=arrival_s,
        slo=slo,
        rollout=Phase(nodes=nodes, worst_case_s=rollout_s, host_memory_gb=rollout_gb, switch=rollout_switch),
        training=Training(
            nodes=training_nodes or nodes, worst_case_s=training_s, host_memory_gb=training_gb, switch=training_switch
        ),
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
