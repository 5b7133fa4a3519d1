"""Shapes of generated jobs, of two kinds that can be combined.

More or fewer nodes: a job may use twice its nodes on one side or on both, or half of them on one side if their number is even. On n
times the nodes a phase takes `fixed + (1 - fixed) / n` times as long, since a part of it does not scale (Amdahl's law): the tail of
a rollout, which more replicas do not shorten, and the communication of a training. The state of a training is sharded over its
nodes, so each keeps 1 / n of it; every rollout node keeps whole replicas. Halving both sides, or halving one and doubling the
other, is not offered.

A third pool: nodes of another kind, by default of 8 A100, on which a job may train, roll out, or both, on its number of nodes.
Combined with the first kind, it may also train there on twice as many.

The parts that do not scale, the pool, and the phase times on the pool are assumptions (`rollmux_env.keys.assumptions`). If the
phase-time model provides them, seconds are relative to its prediction for the job's own nodes, and nodes on which the job does not
fit are no shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rollmux_env.keys.assumptions import Assumptions
from rollmux_env.keys.cluster import SIDES, Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import Shape
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.predicted import model_times

Keys = dict[str, Any]


def most_shapes(options: WorkloadOptions) -> int:
    """Return the largest number of shapes of a job, its own included, or 0 if jobs have no other shapes."""
    own_pools, third = (5 if options.shapes else 0), (3 if options.third_pool else 0)
    both = 1 if options.shapes and options.third_pool else 0
    return 1 + own_pools + third + both if own_pools + third else 0


def with_shapes(job: Job, options: WorkloadOptions) -> Job:
    """Return the job with the shapes that the options ask for. A shape has no `by_nodes`."""
    rollout, training = (partial(_keys, side, job, options.assumed) for side in SIDES)
    pairs: list[tuple[Keys | None, Keys | None]] = []  # rollout and training; {}: as written, None: does not fit
    if options.shapes:
        pairs += [(rollout(n), {}) for n in _factors(job.rollout)] + [({}, training(n)) for n in _factors(job.training)]
        pairs.append((rollout(2.0), training(2.0)))
    if options.third_pool:
        other = rollout(1.0, True), training(1.0, True)
        pairs += [({}, other[1]), (other[0], {}), other]
    if options.shapes and options.third_pool:
        pairs.append(({}, training(2.0, True)))
    shapes = [{"rollout": one, "training": other} for one, other in pairs if one is not None and other is not None]
    known = tuple(Shape.model_validate({side: keys for side, keys in shape.items() if keys}) for shape in shapes)
    return job.model_copy(update={"shapes": known}) if known else job


def _factors(phase: Phase) -> tuple[float, ...]:
    return (2.0,) if phase.nodes % 2 else (0.5, 2.0)


def _keys(side: Side, job: Job, assumed: Assumptions, n: float, elsewhere: bool = False) -> Keys | None:
    """Return the keys of a phase on n times its nodes, in its own pool or in the third one.

    The answer is None if the phase-time model says that the phase does not fit there.
    """
    phase, third = getattr(job, side), assumed.third_pool
    seconds = phase.worst_case_s
    for times in _times(side, job, assumed, n, elsewhere):
        if times is None:
            return None
        seconds *= times
    keys: Keys = ({"pool": third.name} if elsewhere else {}) | {"worst_case_s": round(seconds, 3)}
    if n == 1:
        return keys
    memory = {"host_memory_gb": round(phase.host_memory_gb / n, 3)} if side == "training" else {}
    return keys | {"nodes": int(phase.nodes * n)} | memory


def _times(side: Side, job: Job, assumed: Assumptions, n: float, elsewhere: bool) -> Iterator[float | None]:
    """Yield the factors of the phase's duration for the number of its nodes and for their kind."""
    if n != 1:
        fixed = getattr(assumed.shapes, side)
        yield model_times(side, job, n=n) if assumed.shapes.model else fixed + (1 - fixed) / n
    if elsewhere:
        third = assumed.third_pool
        yield model_times(side, job, third.pool) if third.model else getattr(third, side)
