"""The plans that allocators choose from: training plans, and how many replicas of which kind sample.

Every training plan of a family is made once; the fastest is taken of those that a side has GPUs for.

The rollout plan is an integer program. The paper chooses replicas y and shares x of the responses so that the last replica ends
first, which is bilinear. With all of them ending together that is the largest throughput, sum of y h, under the GPUs of each type.
A row more says that no more responses are sampled at once than may be in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

import highspy
import numpy as np

from rollmux_env import portable
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.allocation import Budget, Counts
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.stages import Replica, Stage, largest_batch, pipeline
from rollmux_env.timing.training import TrainingPlan
from rollmux_env.timing.work import Work

MOST_STAGES = 8  # of one type in a pipeline


class Timed(NamedTuple):
    """A training plan, its seconds, and its GPUs of each type."""

    seconds: float
    gpus: Counts
    plan: TrainingPlan


def training_plans(work: Work, budget: Budget) -> tuple[Timed, ...]:
    """Every plan that fits into memory, the fastest first, without those that another on the same types beats on all counts.

    The stages of one type follow one another, in the budget's order of types, and have as many GPUs each.
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
                plans.append(Timed(plan.seconds(load), used, plan))
    needed: list[Timed] = []
    for timed in sorted(plans, key=lambda timed: (timed.seconds, timed.gpus)):
        if not any(_types(other) == _types(timed) and _within(other.gpus, timed.gpus) for other in needed):
            needed.append(timed)
    return tuple(needed)


def fastest(plans: Sequence[Timed], counts: Counts) -> Timed | None:
    """The fastest plan on at most so many GPUs of each type."""
    return next((timed for timed in plans if _within(timed.gpus, counts)), None)


def group_sizes(machine: int) -> tuple[int, ...]:
    """GPUs that a tensor-parallel group may have: powers of two that divide a machine."""
    return tuple(2**k for k in range(machine.bit_length()) if machine % 2**k == 0)


def _choices(count: int, copies: int, machine: int) -> Iterator[tuple[int, int]]:
    """(stages, GPUs of each) of one type in every copy."""
    yield 0, 1
    for gpus in group_sizes(machine):
        for stages in range(1, min(MOST_STAGES, count // (copies * gpus)) + 1):
            yield stages, gpus


def _types(timed: Timed) -> tuple[bool, ...]:
    """Which ones train; the update of the rollout side's weights comes from them."""
    return tuple(count > 0 for count in timed.gpus)


def _within(gpus: Counts, counts: Counts) -> bool:
    return all(own <= most for own, most in zip(gpus, counts, strict=True))


def _training_speed(hardware: Hardware) -> float:
    return hardware.training_tflops


GAP = 1e-6  # of the program, relative
_STAGES = (1, 2, 4)  # of a replica's pipeline


class Kind(NamedTuple):
    """A kind of replica: its GPUs of each type, its throughput in responses per second."""

    replica: Replica
    gpus: Counts
    responses_per_s: float


class RolloutPlan(NamedTuple):
    """Numbers of replicas by kind, those that there are, and their throughput together."""

    replicas: tuple[tuple[Replica, int], ...]
    responses_per_s: float


def replica_kinds(work: Work, budget: Budget) -> tuple[Kind, ...]:
    """Every kind of replica that fits, but those that replicas of another kind replace at no loss.

    A pipeline has 1, 2 or 4 stages of one type, or one of each of two types, with the same tensor parallelism; batches are
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
    ample = most <= work.in_flight  # then the number of sequences never matters
    needed: list[Kind] = []
    for kind in kinds:
        if not any(_beats(other, kind, ample) for other in needed):
            needed.append(kind)
    return tuple(needed)


def rollout_plan(kinds: Sequence[Kind], counts: Counts, in_flight: int) -> RolloutPlan | None:
    """The replicas with the largest throughput on at most so many GPUs of each type; None where not one fits.

    Args:
        in_flight: most sequences at once, of all replicas.
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
    """Whole numbers y >= 0 that maximise value @ y where y @ use <= limits.

    Args:
        value: (n,). use: (n, m). limits: (m,).
    """
    columns, rows = len(use), len(limits)
    highspy.Highs.resetGlobalScheduler(True)
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, option in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", GAP)):
        highs.setOptionValue(name, option)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    nothing = np.zeros(0, np.int32)
    highs.addRows(rows, np.zeros(rows), limits, 0, nothing, nothing, np.zeros(0))
    starts, row = np.arange(0, rows * columns, rows, dtype=np.int32), np.tile(np.arange(rows, dtype=np.int32), columns)
    most = np.floor(np.where(use > 0, limits / np.where(use > 0, use, 1.0), np.inf).min(axis=1))  # of each alone
    highs.addCols(columns, value / value.max(), np.zeros(columns), most, row.size, starts, row, use.ravel())
    highs.changeColsIntegrality(columns, np.arange(columns, dtype=np.int32), np.ones(columns, dtype=np.uint8))
    highs.run()
    return np.asarray(np.rint(np.array(highs.getSolution().col_value)), dtype=np.int64)


def _kind(work: Work, stages: tuple[Stage, ...], used: Counts, batch: int) -> Kind:
    replica = Replica(stages, batch)
    return Kind(replica, used, replica.responses_per_s(work))


def _batches(stages: tuple[Stage, ...], work: Work) -> list[int]:
    most = largest_batch(stages, work)
    return sorted({most, *(2**k for k in range(most.bit_length()))} - {0})


def _beats(other: Kind, kind: Kind, ample: bool) -> bool:
    """Whether as many of another kind as need no more GPUs than one of this kind, nor more sequences, are no slower.

    Args:
        ample: sequences do not count.
    """
    times = min(own // each for own, each in zip(kind.gpus, other.gpus, strict=True) if each)
    times = times if ample else min(times, kind.replica.batch // other.replica.batch)
    return times * other.responses_per_s >= kind.responses_per_s


def _sampling_speed(hardware: Hardware) -> float:
    return hardware.weights_gb_s
