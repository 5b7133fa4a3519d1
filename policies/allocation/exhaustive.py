"""`exhaustive`: the yardstick. Every training plan of the family, with the best rollout plan on what it leaves."""

from __future__ import annotations

from math import inf

from policies.allocation.plan_table import PlanTable
from rollmux_env.errors import InputError
from rollmux_env.timing.allocation import Allocation, Budget
from rollmux_env.timing.work import Work

MOST_GPUS = 96


def exhaustive(work: Work, budget: Budget) -> Allocation:
    """The allocation with the shortest iteration of all.

    Raises:
        InputError: the budget holds no plan, or more than `MOST_GPUS` GPUs; one line.
    """
    if (count := sum(budget.counts)) > MOST_GPUS:
        raise InputError(f"exhaustive: is for budgets of at most {MOST_GPUS} GPUs, not {count}")
    table = PlanTable(work, budget)
    best: Allocation | None = None
    for timed in table.plans:
        best = table.complete(timed, inf if best is None else best.iteration_s) or best
    assert best is not None  # the table holds a plan
    return best
