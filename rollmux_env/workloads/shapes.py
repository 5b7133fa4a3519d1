"""Shapes of jobs by a simple rule, for streams whose jobs may run on other nodes than they ask for.

A phase has either side's nodes halved, where there is an even number of them, or doubled, one side or both. On n times the nodes it
takes `fixed + (1 - fixed) / n` times as long: a part of it does not scale (Amdahl's law). Of a rollout that is the tail, which more
replicas do not shorten; of a training the communication. The state of a training is sharded over its nodes, so each keeps 1 / n of
it; every rollout node keeps whole replicas. Halving both sides, or one and doubling the other, is not offered.
"""

from __future__ import annotations

from typing import Any

from rollmux_env.job_keys import Job
from rollmux_env.phase_keys import Phase
from rollmux_env.shape_keys import PhaseShape, Shape, TrainingShape

FIXED = {"rollout": 0.25, "training": 0.15}  # parts of a phase that more nodes do not shorten; assumed

MOST_SHAPES = 6  # of a job, the own one counted


def with_shapes(job: Job) -> Job:
    """The job with the shapes of the rule. A shape has no `by_nodes`."""
    rollouts = {n: PhaseShape(**_scaled("rollout", job.rollout, n)) for n in _factors(job.rollout)}
    trainings = {n: TrainingShape(**_scaled("training", job.training, n)) for n in _factors(job.training)}
    shapes = [Shape(rollout=one) for one in rollouts.values()] + [Shape(training=one) for one in trainings.values()]
    return job.model_copy(update={"shapes": (*shapes, Shape(rollout=rollouts[2.0], training=trainings[2.0]))})


def _factors(phase: Phase) -> tuple[float, ...]:
    return (2.0,) if phase.nodes % 2 else (0.5, 2.0)


def _scaled(side: str, phase: Phase, n: float) -> dict[str, Any]:
    """Keys of the phase on n times the nodes."""
    fixed = FIXED[side]
    keys = {"nodes": int(phase.nodes * n), "worst_case_s": round(phase.worst_case_s * (fixed + (1 - fixed) / n), 3)}
    return keys | ({"host_memory_gb": round(phase.host_memory_gb / n, 3)} if side == "training" else {})
