"""`hex`: AReaL-Hex's alternation (arXiv 2511.00796) of a training plan, a rollout plan and a new bisection of the GPUs.

A bisection is asked for with a share gamma of the arithmetic on the training side, which a binary search moves: down where rollouts
take longer, up where the training does. When its interval is narrower than discrete GPUs can tell apart, it goes on with the
bisections near its end that were not tried, best measure first. After twenty rounds without a better allocation it ends.
"""

from __future__ import annotations

from policies.allocation.bisection import bisections
from policies.allocation.space import Space
from policies.allocation.training import fastest
from rollmux_env.errors import InputError
from rollmux_env.timing.allocation import Allocation, Budget, Counts
from rollmux_env.timing.work import Work

STABLE = 20  # rounds


def hex_search(work: Work, budget: Budget) -> Allocation:
    """The best allocation that the alternation comes by.

    Raises:
        InputError: the budget holds no plan; one line.
    """
    space, graph = Space(work, budget), bisections(work, budget)
    low, high = 0.0, 1.0
    tried: set[Counts] = set()
    best: Allocation | None = None
    stable = 0
    while stable < STABLE or best is None:
        gamma = (low + high) / 2
        counts = graph.best(gamma, tried)
        if counts is None:
            break
        tried.add(counts)
        found = space.divide(counts)
        stable += 1
        if found is not None and (best is None or found.iteration_s < best.iteration_s):
            best, stable = found, 0
        if high - low > graph.tolerance:
            short = fastest(space.plans, counts) is None if found is None else found.training_s > found.rollout_s
            low, high = (gamma, high) if short else (low, gamma)
    if best is None:
        raise InputError("budget: holds no plan")
    return best
