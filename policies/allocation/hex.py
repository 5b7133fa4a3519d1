"""`hex`: AReaL-Hex's alternation (arXiv 2511.00796) of a training plan, a rollout plan and a new bisection of the GPUs.

A bisection has a share gamma of the arithmetic on the training side, which a binary search moves: down where rollouts take longer,
up where the training does, until discrete GPUs can no longer tell the interval's ends apart. The paper's measure of a bisection
weighs links and memory alike, which can keep the wrong type for the training (links grow with the square of GPUs), so the search is
done with memory alone too. Then the rounds go on with the training plans nearest to the best one's GPUs that could beat it. After
twenty rounds without a better allocation it ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.allocation.bisection import bisections
from policies.allocation.space import Space
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
    space = Space(work, budget)
    search = _Search(space)
    for weight in WEIGHTS:
        search.bisect(weight)
    search.refine()
    assert search.best is not None  # the space holds a plan, and the rounds end with the last one
    return search.best


class _Search:
    """The rounds so far.

    Attributes:
        best: allocation. stable: rounds since it was found. tried: GPUs of the training plans so far.
    """

    def __init__(self, space: Space) -> None:
        self.best: Allocation | None = None
        self.stable = 0
        self.tried: dict[Counts, Allocation | None] = {}
        self._space = space
        self._near: Counts = space.budget.counts

    def bisect(self, weight: float) -> None:
        """Search for the share of the arithmetic at which both sides take as long."""
        graph = bisections(self._space.work, self._space.budget)
        low, high = 0.0, 1.0
        while high - low > graph.tolerance:
            gamma = (low + high) / 2
            timed = fastest(self._space.plans, graph.best(gamma, weight))
            found = None if timed is None else self._round(timed)
            more = timed is None or (found is not None and found.training_s > found.rollout_s)
            low, high = (gamma, high) if more else (low, gamma)

    def refine(self) -> None:
        """Go on with what is near the best allocation."""
        while self.stable < STABLE or self.best is None:
            timed = min(self._better(), key=lambda timed: (self._distance(timed), timed.seconds), default=None)
            if timed is None:
                return
            self._round(timed)

    def _round(self, timed: Timed) -> Allocation | None:
        if timed.gpus in self.tried:
            return self.tried[timed.gpus]
        found = self._space.complete(timed)
        self.tried[timed.gpus] = found
        self.stable += 1
        if found is not None and (self.best is None or found.iteration_s < self.best.iteration_s):
            self.best, self.stable, self._near = found, 0, timed.gpus
        return found

    def _better(self) -> Iterator[Timed]:
        """Training plans that were not tried and leave room for a shorter iteration."""
        for timed in self._space.plans:
            if self.best is not None and timed.seconds >= self.best.iteration_s:
                return
            if timed.gpus not in self.tried:
                yield timed

    def _distance(self, timed: Timed) -> int:
        """GPUs that change sides."""
        return sum(abs(a - b) for a, b in zip(timed.gpus, self._near, strict=True))
