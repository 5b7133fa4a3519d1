"""`uniform`: half of each type's GPUs trains, half samples, with the best plans on these halves."""

from __future__ import annotations

from itertools import product

from policies.allocation.plan_table import PlanTable
from policies.allocation.training import fastest
from rollmux_env.errors import InputError
from rollmux_env.timing.allocation import Allocation, Budget
from rollmux_env.timing.work import Work


def uniform(work: Work, budget: Budget) -> Allocation:
    """Divide each type in halves; where these hold nothing, in the parts nearest to halves that do.

    Raises:
        InputError: the budget holds no plan; one line.
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
