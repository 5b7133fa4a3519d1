"""`hex`: AReaL-Hex's alternation (arXiv 2511.00796) of a training plan, a rollout plan and a new bisection of the GPUs.

A bisection has a share gamma of the arithmetic on the training side, which a binary search moves: down where rollouts take longer,
up where the training does, until discrete GPUs can no longer tell the interval's ends apart. The paper's measure of a bisection
weighs links and memory alike, which can keep the wrong type for the training (links grow with the square of GPUs), so the search is
done with memory alone too. Then the rounds go on with training plans that could beat the best allocation: in turns the one whose
iteration may be the shortest, and the one with the nearest GPUs. After twenty rounds without a better allocation it ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.allocation.bisection import bisections
from policies.allocation.plan_table import PlanTable
from policies.allocation.training import Timed, fastest
from rollmux_env.timing.allocation import Allocation, Budget, Counts
from rollmux_env.timing.work import Work

STABLE = 20  # rounds
WEIGHTS = (0.5, 0.0)  # of links in the measure of a bisection


def hex_search(work: Work, budget: Budget) -> Allocation:
    """The best allocation that the alternation comes by.

    Raises:
        InputError: the budget holds no plan; one line.
    """
    table = PlanTable(work, budget)
    search = _Search(table)
    for weight in WEIGHTS:
        search.bisect(weight)
    search.refine()
    assert search.best is not None  # the table holds a plan, and the rounds end with the last one
    return search.best


class _Search:
    """The rounds so far.

    Attributes:
        best: allocation. stable: rounds since it was found. tried: GPUs of the training plans so far.
    """

    def __init__(self, table: PlanTable) -> None:
        self.best: Allocation | None = None
        self.stable = 0
        self.tried: dict[Counts, Allocation | None] = {}
        self._table = table
        self._near: Counts = table.budget.counts

    def bisect(self, weight: float) -> None:
        """Search for the share of the arithmetic at which both sides take as long."""
        graph = bisections(self._table.budget)
        low, high = 0.0, 1.0
        while high - low > graph.tolerance:
            gamma = (low + high) / 2
            timed = fastest(self._table.plans, graph.best(gamma, weight))
            allocation = None if timed is None else self._round(timed)
            more = timed is None or (allocation is not None and allocation.training_s > allocation.rollout_s)
            low, high = (gamma, high) if more else (low, gamma)

    def refine(self) -> None:
        """Go on with what promises most, and with what is near the best allocation."""
        while self.stable < STABLE or self.best is None:
            key = self._distance if self.stable % 2 else self._table.least_s
            timed = min(self._better(), key=lambda timed: (key(timed), timed.seconds), default=None)
            if timed is None:
                return
            self._round(timed)

    def _round(self, timed: Timed) -> Allocation | None:
        if timed.gpus in self.tried:
            return self.tried[timed.gpus]
        allocation = self._table.complete(timed)
        self.tried[timed.gpus] = allocation
        self.stable += 1
        if allocation is not None and (self.best is None or allocation.iteration_s < self.best.iteration_s):
            self.best, self.stable, self._near = allocation, 0, timed.gpus
        return allocation

    def _better(self) -> Iterator[Timed]:
        """Training plans that were not tried and leave room for a shorter iteration."""
        for timed in self._table.plans:
            if self.best is not None and timed.seconds >= self.best.iteration_s:
                return
            if timed.gpus not in self.tried:
                yield timed

    def _distance(self, timed: Timed) -> float:
        """GPUs that change sides."""
        return sum(abs(a - b) for a, b in zip(timed.gpus, self._near, strict=True))
