"""`hex`: AReaL-Hex's alternation (arXiv 2511.00796) of a training plan, a rollout plan and a new bisection of the GPUs.

The GPUs are the nodes of a graph whose edges are links. A bisection is the better the more of all link bandwidth lies inside the
training side, and of all memory bandwidth on the rollout side. GPUs of one type and machine are alike, and a side that fills
machine after machine has the most links inside, so numbers of GPUs say all, and the best one is found by looking at each.

A bisection has a share gamma of the arithmetic on the training side, which a binary search moves: down where rollouts take longer,
up where the training does, until discrete GPUs can no longer tell the interval's ends apart. The paper's measure of a bisection
weighs links and memory alike, which can keep the wrong type for the training (links grow with the square of GPUs), so the search is
done with memory alone too. Then the rounds go on with training plans that could beat the best allocation: in turns the one whose
iteration may be the shortest, and the one with the nearest GPUs. After twenty rounds without a better allocation it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from policies.allocation.plan_table import PlanTable
from policies.allocation.plans import Timed, fastest
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.allocation import Allocation, Budget, Counts
from rollmux_env.timing.hardware import Hardware, link_between
from rollmux_env.timing.work import Work


class Bisections(NamedTuple):
    """All of a budget's, one a row.

    Attributes:
        counts: (n, types) GPUs that train. compute: (n,) their share of all arithmetic. links: (n,) share of all link bandwidth
            that lies between them. memory: (n,) share of all memory bandwidth on the other side. tolerance: half the largest share
            of one GPU's arithmetic: a window of this half-width always holds a bisection.
    """

    counts: Ints
    compute: Floats
    links: Floats
    memory: Floats
    tolerance: float

    def best(self, gamma: float, weight: float) -> Counts:
        """The best one of those whose share of arithmetic is within the tolerance of `gamma`; the first of equal ones.

        Args:
            weight: of links in the measure; memory has the same at 1/2, which is the paper's, and all of it at 0.
        """
        distance = np.abs(self.compute - gamma)
        near = np.flatnonzero(distance <= max(self.tolerance, float(distance.min())) * (1 + 1e-9))
        score = weight * self.links[near] + (1 - weight) * self.memory[near]
        return tuple(int(count) for count in self.counts[near[np.argmax(score)]])


def bisections(budget: Budget) -> Bisections:
    """All bisections, with at least one GPU on either side."""
    hardware = budget.hardware
    whole = np.array(budget.counts)
    counts = np.stack([axis.ravel() for axis in np.indices([count + 1 for count in budget.counts])], axis=1)
    counts = counts[(counts.sum(axis=1) > 0) & (counts.sum(axis=1) < whole.sum())]
    tflops = np.array([each.training_tflops for each in hardware])
    bandwidth = np.array([each.weights_gb_s for each in hardware])
    links = _bandwidth(counts, hardware, budget.machine) / _bandwidth(whole[None], hardware, budget.machine)
    memory = ((whole - counts) * bandwidth).sum(axis=1) / (whole * bandwidth).sum()
    total = (whole * tflops).sum()
    return Bisections(counts, (counts * tflops).sum(axis=1) / total, links, memory, float(tflops.max() / total) / 2)


def _bandwidth(counts: Ints, hardware: tuple[Hardware, ...], machine: int) -> Floats:
    """(n,) GB/s of all links between so many GPUs of each type."""
    total = np.zeros(len(counts))
    for k, here in enumerate(hardware):
        own, (machines, rest) = counts[:, k], np.divmod(counts[:, k], machine)
        within = machines * (machine * (machine - 1) // 2) + rest * (rest - 1) // 2
        total += within * here.machine_link.gb_s + (own * (own - 1) // 2 - within) * link_between(here, here).gb_s
        for j in range(k):
            total += own * counts[:, j] * link_between(here, hardware[j]).gb_s
    return total


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
