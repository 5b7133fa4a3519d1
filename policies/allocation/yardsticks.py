"""The yardsticks for `hex`: `uniform` halves every type, `exhaustive` tries every training plan of the family."""

from __future__ import annotations

from itertools import product
from math import inf

from policies.allocation.plan_table import PlanTable
from policies.allocation.plans import fastest
from rollmux_env.allocation.allocation import Allocation, GpuBudget
from rollmux_env.errors import InputError
from rollmux_env.timing.work import IterationWork


def uniform(work: IterationWork, budget: GpuBudget) -> Allocation:
    """Divide each type in halves, or into the parts nearest to halves that hold a plan.

    Raises:
        InputError: The budget holds no plan.
    """
    table = PlanTable(work, budget)
    splits = sorted(
        product(*(range(count + 1) for count in budget.counts)),
        key=lambda split: (sum((part / count - 0.5) ** 2 for part, count in zip(split, budget.counts, strict=True)), split),
    )
    for split in splits:
        timed = fastest(table.plans, split)
        allocation = table.complete(timed) if timed is not None else None
        if allocation is not None:
            return allocation
    raise InputError("budget: holds no plan")


MAX_GPUS = 96


def exhaustive(work: IterationWork, budget: GpuBudget) -> Allocation:
    """Find the allocation with the shortest iteration by trying every training plan.

    Raises:
        InputError: The budget holds no plan, or has more than `MAX_GPUS` GPUs.
    """
    if (count := sum(budget.counts)) > MAX_GPUS:
        raise InputError(f"exhaustive: is for budgets of at most {MAX_GPUS} GPUs, not {count}")
    table = PlanTable(work, budget)
    best: Allocation | None = None
    for timed in table.plans:
        best = table.complete(timed, inf if best is None else best.iteration_s) or best
    assert best is not None  # the table holds a plan
    return best
