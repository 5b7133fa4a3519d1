"""Shapes of generated jobs, of two kinds that go together.

More or fewer nodes: half of them where there is an even number of them, or doubled, one side or both. On n times the nodes it takes
`fixed + (1 - fixed) / n` times as long: a part of it does not scale (Amdahl's law). Of a rollout that is the tail, which more
replicas do not shorten; of a training the communication. The state of a training is sharded over its nodes, so each keeps 1 / n of
it; every rollout node keeps whole replicas. Halving both sides, or one and doubling the other, is not offered.

A third pool: nodes of 8 A100, on which a job may train, roll out, or both, on as many nodes as it asks for. Beside shapes of the
first kind it may train on twice as many, too.
"""

from __future__ import annotations

from typing import Any

from rollmux_env.keys.cluster import Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape
from rollmux_env.workloads.options import WorkloadOptions

FIXED = {"rollout": 0.25, "training": 0.15}  # parts of a phase that more nodes do not shorten; assumed

# An A100 has half the memory bandwidth of an H20 and a third of the arithmetic of an H800; phases reach neither peak. Its price
# and how many times as long a phase takes on it are assumed: by itself training there costs 9% less, and a rollout 69% more.
THIRD = "A100"
THIRD_POOL = Pool(gpu=THIRD, gpus_per_node=8, usd_per_gpu_hour=2.40, node_memory_gb=2000)
TIMES = {"rollout": 1.3, "training": 2.0}


def most_shapes(options: WorkloadOptions) -> int:
    """Most shapes of a job of a stream, the own one counted; 0 where no job has others."""
    own_pools, third = (5 if options.shapes else 0), (3 if options.third_pool else 0)
    both = 1 if options.shapes and options.third_pool else 0
    return 1 + own_pools + third + both if own_pools + third else 0


def with_shapes(job: Job, options: WorkloadOptions) -> Job:
    """The job with the shapes that the options ask for. A shape has no `by_nodes`."""
    shapes: list[Shape] = []
    if options.shapes:
        rollouts = {n: PhaseShape(**_scaled("rollout", job.rollout, n)) for n in _factors(job.rollout)}
        trainings = {n: TrainingShape(**_scaled("training", job.training, n)) for n in _factors(job.training)}
        shapes += [Shape(rollout=one) for one in rollouts.values()] + [Shape(training=one) for one in trainings.values()]
        shapes.append(Shape(rollout=rollouts[2.0], training=trainings[2.0]))
    if options.third_pool:
        rollout, training = PhaseShape(**_elsewhere("rollout", job.rollout)), TrainingShape(**_elsewhere("training", job.training))
        shapes += [Shape(training=training), Shape(rollout=rollout), Shape(rollout=rollout, training=training)]
    if options.shapes and options.third_pool:
        shapes.append(Shape(training=TrainingShape(**_elsewhere("training", job.training, 2.0))))
    return job.model_copy(update={"shapes": tuple(shapes)}) if shapes else job


def _factors(phase: Phase) -> tuple[float, ...]:
    return (2.0,) if phase.nodes % 2 else (0.5, 2.0)


def _scaled(side: str, phase: Phase, n: float, times: float = 1.0) -> dict[str, Any]:
    """Keys of the phase on n times the nodes, of a kind on which it takes so many times as long."""
    fixed = FIXED[side]
    keys = {"nodes": int(phase.nodes * n), "worst_case_s": round(phase.worst_case_s * (fixed + (1 - fixed) / n) * times, 3)}
    return keys | ({"host_memory_gb": round(phase.host_memory_gb / n, 3)} if side == "training" else {})


def _elsewhere(side: str, phase: Phase, n: float = 1.0) -> dict[str, Any]:
    """Keys of the phase in the third pool, on n times the nodes."""
    keys = {"pool": THIRD, "worst_case_s": round(phase.worst_case_s * TIMES[side], 3)}
    return keys if n == 1 else keys | _scaled(side, phase, n, TIMES[side])
