"""The search for a training plan: every plan of a family, each made once, and the fastest of those that a side has GPUs for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from rollmux_env.timing.allocation import Budget, Counts
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.stages import pipeline
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
            stages = pipeline(work.model, groups, _speed, budget.machine) if groups else None
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


def _speed(hardware: Hardware) -> float:
    return hardware.training_tflops
