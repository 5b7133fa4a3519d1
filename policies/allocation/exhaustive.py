"""`exhaustive`: the yardstick. Every training plan, with the best rollout plan on what it leaves, machine by machine.

The update of the weights depends on how many machines of each type sample, and on nothing else of the rollout plan; so for every
number of machines the plan with the largest throughput is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from policies.allocation.space import Space
from rollmux_env.errors import InputError
from rollmux_env.timing.allocation import Allocation, Budget, Counts, rewards_s
from rollmux_env.timing.work import Work, iteration_s

MOST_GPUS = 64


def exhaustive(work: Work, budget: Budget) -> Allocation:
    """The allocation with the shortest iteration of all.

    Raises:
        InputError: the budget holds no plan, or more than `MOST_GPUS` GPUs; one line.
    """
    if (count := sum(budget.counts)) > MOST_GPUS:
        raise InputError(f"exhaustive: is for budgets of at most {MOST_GPUS} GPUs, not {count}")
    space = Space(work, budget)
    speed = _speeds(space)
    best: Allocation | None = None
    for timed in space.plans:
        for counts in _machine_counts(budget.beside(timed.gpus), budget.machine):
            most = sum(count * each for count, each in zip(counts, speed, strict=True))
            if not most:
                continue
            least_s = iteration_s(work.responses / most + rewards_s(work), timed.seconds, work.staleness)
            if best is not None and least_s >= best.iteration_s:
                continue
            rollout = space.rollout(counts)
            if rollout is None:
                continue
            found = space.allocation(timed, rollout)
            if best is None or found.iteration_s < best.iteration_s:
                best = found
    if best is None:
        raise InputError("budget: holds no plan")
    return best


def _machine_counts(counts: Counts, machine: int) -> Iterator[Counts]:
    """GPUs that fill so many machines of each type, all that there are first."""
    return product(*(sorted({count, *range(0, count, machine)}, reverse=True) for count in counts))


def _speeds(space: Space) -> tuple[float, ...]:
    """For each type, a bound on the responses per second that one of its GPUs adds to any plan."""
    return tuple(
        max((kind.responses_per_s / sum(kind.gpus) for kind in space.kinds if kind.gpus[k]), default=0.0)
        for k in range(len(space.budget.gpus))
    )
