"""The plans that allocators choose from: training plans and rollout plans.

All training plans of the family are made once. An allocator then takes the fastest one for which a side has enough GPUs.

A rollout plan is the solution of an integer program. The paper chooses numbers of replicas y and their shares x of the responses so
that the last replica ends first, which is bilinear. If all replicas end together this is equivalent to the largest throughput, the
sum of y h with h the throughput of a replica, subject to the GPUs of each type. One more constraint keeps the number of responses
sampled at once at most at the number that may be in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

import highspy
import numpy as np

from policies.solver import make_solver
from rollmux_env import portable
from rollmux_env.allocation.allocation import Counts, GpuBudget
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.stages import Replica, Stage, largest_batch, pipeline
from rollmux_env.timing.training import TrainingPlan
from rollmux_env.timing.work import IterationWork

MAX_STAGES = 8  # stages of one type in a pipeline


class TimedPlan(NamedTuple):
    """A training plan with its duration.

    Attributes:
        seconds: Seconds of the training of one iteration.
        gpus: GPUs of each type that the plan uses.
        plan: The training plan.
    """

    seconds: float
    gpus: Counts
    plan: TrainingPlan


def training_plans(work: IterationWork, budget: GpuBudget) -> tuple[TimedPlan, ...]:
    """Make all training plans that fit into memory, fastest first.

    A plan is left out if a faster one uses the same types and no more GPUs of any. The stages of one type are adjacent, in the
    budget's order of types, and have the same number of GPUs each.
    """
    load, plans = budget.load(work), []
    for copies in range(1, max(budget.counts) + 1):
        choices = [tuple(_choices(count, copies, budget.machine)) for count in budget.counts]
        for parts in product(*choices):
            groups = tuple((each, gpus) for each, (stages, gpus) in zip(budget.hardware, parts, strict=True) for _ in range(stages))
            stages = pipeline(work.model, groups, _training_speed, budget.machine) if groups else None
            if stages is None:
                continue
            plan = TrainingPlan(stages, copies, budget.machine)
            if plan.fits(work.micro_tokens):
                used = tuple(copies * number * gpus for number, gpus in parts)
                plans.append(TimedPlan(plan.seconds(load), used, plan))
    needed: list[TimedPlan] = []
    for timed in sorted(plans, key=lambda timed: (timed.seconds, timed.gpus)):
        if not any(_types(other) == _types(timed) and _within(other.gpus, timed.gpus) for other in needed):
            needed.append(timed)
    return tuple(needed)


def fastest(plans: Sequence[TimedPlan], counts: Counts) -> TimedPlan | None:
    """Return the first of the plans that needs at most `counts` GPUs of each type, or None. `plans` are sorted by duration."""
    return next((timed for timed in plans if _within(timed.gpus, counts)), None)


def group_sizes(machine: int) -> tuple[int, ...]:
    """Return the GPU counts that a tensor-parallel group may have: powers of two that divide a machine."""
    return tuple(2**k for k in range(machine.bit_length()) if machine % 2**k == 0)


def _choices(count: int, copies: int, machine: int) -> Iterator[tuple[int, int]]:
    """Yield (stages, GPUs of each stage) that one type can contribute to every copy of the pipeline."""
    yield 0, 1
    for gpus in group_sizes(machine):
        for stages in range(1, min(MAX_STAGES, count // (copies * gpus)) + 1):
            yield stages, gpus


def _types(timed: TimedPlan) -> tuple[bool, ...]:
    """Return for each type whether it trains. The update of the rollout side's weights depends on these types."""
    return tuple(count > 0 for count in timed.gpus)


def _within(gpus: Counts, counts: Counts) -> bool:
    return all(own <= most for own, most in zip(gpus, counts, strict=True))


def _training_speed(hardware: Hardware) -> float:
    return hardware.training_tflops


GAP = 1e-6  # relative gap at which the integer program counts as solved
_STAGES = (1, 2, 4)  # stages of a replica's pipeline on one type


class ReplicaKind(NamedTuple):
    """A kind of replica.

    Attributes:
        replica: The replica's stages and batch.
        gpus: GPUs of each type that one replica uses.
        responses_per_s: Throughput of one replica, in responses per second.
    """

    replica: Replica
    gpus: Counts
    responses_per_s: float


class RolloutPlan(NamedTuple):
    """Replicas that sample together.

    Attributes:
        replicas: Each kind of replica that is used, with its number.
        responses_per_s: Throughput of all replicas together, in responses per second.
    """

    replicas: tuple[tuple[Replica, int], ...]
    responses_per_s: float


def replica_kinds(work: IterationWork, budget: GpuBudget) -> tuple[ReplicaKind, ...]:
    """Make all kinds of replicas that fit and that no other kind replaces without loss.

    A pipeline has 1, 2 or 4 stages of one type, or one stage of each of two types with the same tensor parallelism. Batches are
    powers of two, and the largest that fits.
    """
    hardware = budget.hardware
    kinds = []
    for gpus in group_sizes(budget.machine):
        rows = [((each, gpus),) * stages for each in hardware for stages in _STAGES]
        rows += [((a, gpus), (b, gpus)) for a, b in combinations(hardware, 2)]
        for groups in rows:
            stages = pipeline(work.model, groups, _sampling_speed, budget.machine)
            if stages is not None:
                used = tuple(sum(n for each, n in groups if each is own) for own in hardware)
                if _within(used, budget.counts):
                    kinds += [_kind(work, stages, used, batch) for batch in _batches(stages, work)]
    kinds.sort(key=lambda kind: (sum(kind.gpus), -kind.responses_per_s, kind.replica.batch))
    most = max((kind.replica.batch / sum(kind.gpus) for kind in kinds), default=0.0) * sum(budget.counts)
    ample = most <= work.in_flight  # then the limit on sequences in flight never binds
    needed: list[ReplicaKind] = []
    for kind in kinds:
        if not any(_beats(other, kind, ample) for other in needed):
            needed.append(kind)
    return tuple(needed)


def rollout_plan(kinds: Sequence[ReplicaKind], counts: Counts, in_flight: int) -> RolloutPlan | None:
    """Return the replicas with the largest total throughput, or None if not even one fits.

    Args:
        kinds: Kinds of replicas to choose from.
        counts: GPUs of each type that may be used.
        in_flight: Largest number of sequences at once, over all replicas.
    """
    usable = [kind for kind in kinds if _within(kind.gpus, counts)]
    if not usable:
        return None
    rate = np.array([kind.responses_per_s for kind in usable])
    rows = np.array([[*kind.gpus, kind.replica.batch] for kind in usable], dtype=np.float64)
    numbers = _most(rate, rows, np.array([*counts, in_flight], dtype=np.float64))
    chosen = tuple((kind.replica, int(number)) for kind, number in zip(usable, numbers, strict=True) if number)
    return RolloutPlan(chosen, portable.dot(rate, numbers)) if chosen else None


def _most(value: Floats, use: Floats, limits: Floats) -> Ints:
    """Return the whole numbers y >= 0, shape (n,), that maximise value @ y subject to y @ use <= limits.

    Args:
        value: Value of one unit of each column, shape (n,).
        use: Resources that one unit of each column uses, shape (n, m).
        limits: Available amount of each resource, shape (m,).
    """
    columns, rows = len(use), len(limits)
    highs = make_solver()
    highs.setOptionValue("mip_rel_gap", GAP)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    nothing = np.zeros(0, np.int32)
    highs.addRows(rows, np.zeros(rows), limits, 0, nothing, nothing, np.zeros(0))
    starts, row = np.arange(0, rows * columns, rows, dtype=np.int32), np.tile(np.arange(rows, dtype=np.int32), columns)
    most = np.floor(np.where(use > 0, limits / np.where(use > 0, use, 1.0), np.inf).min(axis=1))  # if a column is used alone
    highs.addCols(columns, value / value.max(), np.zeros(columns), most, row.size, starts, row, use.ravel())
    highs.changeColsIntegrality(columns, np.arange(columns, dtype=np.int32), np.ones(columns, dtype=np.uint8))
    highs.run()
    return np.asarray(np.rint(np.array(highs.getSolution().col_value)), dtype=np.int64)


def _kind(work: IterationWork, stages: tuple[Stage, ...], used: Counts, batch: int) -> ReplicaKind:
    replica = Replica(stages, batch)
    return ReplicaKind(replica, used, replica.responses_per_s(work))


def _batches(stages: tuple[Stage, ...], work: IterationWork) -> list[int]:
    most = largest_batch(stages, work)
    return sorted({most, *(2**k for k in range(most.bit_length()))} - {0})


def _beats(other: ReplicaKind, kind: ReplicaKind, ample: bool) -> bool:
    """Return whether replicas of another kind, on no more GPUs than one of this kind, are at least as fast.

    Args:
        other: Kind that could replace `kind`.
        kind: Kind that could be left out.
        ample: Whether the limit on sequences in flight never binds. Otherwise the replacement must not have more sequences either.
    """
    times = min(own // each for own, each in zip(kind.gpus, other.gpus, strict=True) if each)
    times = times if ample else min(times, kind.replica.batch // other.replica.batch)
    return times * other.responses_per_s >= kind.responses_per_s


def _sampling_speed(hardware: Hardware) -> float:
    return hardware.weights_gb_s
