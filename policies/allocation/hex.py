"""The allocator `hex`: the alternating search of AReaL-Hex (arXiv 2511.00796).

Each round takes a training plan and completes it with the best rollout plan on the remaining GPUs.

The GPUs are the nodes of a graph whose edges are links. A bisection scores well if much of the link bandwidth lies inside the
training side and much of the memory bandwidth on the rollout side. GPUs of the same type are interchangeable, and a side that fills
machine after machine has the most links inside. A bisection is therefore a number of GPUs of each type, and all are enumerated.

The search has two parts.

1. A binary search over gamma, the training side's share of the arithmetic. Each round bisects the GPUs at gamma and takes the
   fastest training plan of the training side. Gamma falls where the rollout takes longer and rises
   where the training does, until the interval is narrower than one GPU. The paper's score weighs links and memory equally. This
   can keep the wrong type on the training side, because the number of links grows with the square of the GPUs. The binary search
   is therefore repeated with memory alone.
2. A refinement that tries training plans which could still beat the best allocation. It alternates between the plan with the
   lowest bound on the iteration and the plan whose GPUs are nearest to those of the best one. It ends after twenty rounds without
   an improvement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from policies.allocation.plan_table import PlanTable
from policies.allocation.plans import TimedPlan, fastest
from rollmux_env.allocation.allocation import Allocation, Counts, GpuBudget
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.hardware import Hardware, link_between
from rollmux_env.timing.work import IterationWork


class Bisections(NamedTuple):
    """All bisections of a budget, one in each row.

    Attributes:
        counts: GPUs of each type on the training side, shape (n, types).
        compute: Share of all arithmetic on the training side, shape (n,).
        links: Share of all link bandwidth between GPUs of the training side, shape (n,).
        memory: Share of all memory bandwidth on the rollout side, shape (n,).
        tolerance: Half the largest share of arithmetic of one GPU. Every window of this half-width contains a bisection.
    """

    counts: Ints
    compute: Floats
    links: Floats
    memory: Floats
    tolerance: float

    def best(self, gamma: float, weight: float) -> Counts:
        """Return the bisection with the highest score whose share of the arithmetic is within the tolerance of `gamma`.

        Args:
            gamma: Desired share of the arithmetic on the training side, from 0 to 1.
            weight: Weight of links in the score, from 0 to 1; memory has the rest. The paper uses 0.5.

        Returns:
            GPUs of each type on the training side. Ties go to the first row.
        """
        distance = np.abs(self.compute - gamma)
        near = np.flatnonzero(distance <= max(self.tolerance, float(distance.min())) * (1 + 1e-9))
        score = weight * self.links[near] + (1 - weight) * self.memory[near]
        return tuple(int(count) for count in self.counts[near[np.argmax(score)]])


def bisections(budget: GpuBudget) -> Bisections:
    """Enumerate all bisections of a budget that have at least one GPU on either side."""
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
    """Sum the bandwidth of all links among `counts` GPUs, in GB/s, shape (n,)."""
    total = np.zeros(len(counts))
    for k, here in enumerate(hardware):
        own, (machines, rest) = counts[:, k], np.divmod(counts[:, k], machine)
        within = machines * (machine * (machine - 1) // 2) + rest * (rest - 1) // 2
        total += within * here.machine_link.gb_s + (own * (own - 1) // 2 - within) * link_between(here, here).gb_s
        for j in range(k):
            total += own * counts[:, j] * link_between(here, hardware[j]).gb_s
    return total


STABLE = 20  # rounds without an improvement after which the refinement ends
WEIGHTS = (0.5, 0.0)  # weights of links in the score, one for each binary search


def hex_search(work: IterationWork, budget: GpuBudget) -> Allocation:
    """Search for the allocation with the shortest iteration by alternating plans and bisections.

    Raises:
        InputError: The budget holds no plan.
    """
    table = PlanTable(work, budget)
    search = _HexSearch(table)
    for weight in WEIGHTS:
        search.bisect(weight)
    search.refine()
    assert search.best is not None  # the table holds a plan, and the rounds end with the last one
    return search.best


class _HexSearch:
    """State of one search.

    Attributes:
        best: Best allocation so far, or None.
        stable: Rounds since the best allocation was found.
        tried: Result of each training plan tried so far, by its GPUs of each type; None where no replica fits beside it.
    """

    def __init__(self, table: PlanTable) -> None:
        self.best: Allocation | None = None
        self.stable = 0
        self.tried: dict[Counts, Allocation | None] = {}
        self._table = table
        self._near: Counts = table.budget.counts

    def bisect(self, weight: float) -> None:
        """Search for the share of the arithmetic at which both sides take equally long."""
        graph = bisections(self._table.budget)
        low, high = 0.0, 1.0
        while high - low > graph.tolerance:
            gamma = (low + high) / 2
            timed = fastest(self._table.plans, graph.best(gamma, weight))
            allocation = None if timed is None else self._round(timed)
            more = timed is None or (allocation is not None and allocation.training_s > allocation.rollout_s)
            low, high = (gamma, high) if more else (low, gamma)

    def refine(self) -> None:
        """Try plans that could beat the best allocation: alternately the most promising and the nearest to the best one."""
        while self.stable < STABLE or self.best is None:
            key = self._distance if self.stable % 2 else self._table.least_s
            timed = min(self._better(), key=lambda timed: (key(timed), timed.seconds), default=None)
            if timed is None:
                return
            self._round(timed)

    def _round(self, timed: TimedPlan) -> Allocation | None:
        if timed.gpus in self.tried:
            return self.tried[timed.gpus]
        allocation = self._table.complete(timed)
        self.tried[timed.gpus] = allocation
        self.stable += 1
        if allocation is not None and (self.best is None or allocation.iteration_s < self.best.iteration_s):
            self.best, self.stable, self._near = allocation, 0, timed.gpus
        return allocation

    def _better(self) -> Iterator[TimedPlan]:
        """Yield the training plans not tried yet that leave room for a shorter iteration."""
        for timed in self._table.plans:
            if self.best is not None and timed.seconds >= self.best.iteration_s:
                return
            if timed.gpus not in self.tried:
                yield timed

    def _distance(self, timed: TimedPlan) -> float:
        """Count the GPUs that change sides between a plan and the best one."""
        return sum(abs(a - b) for a, b in zip(timed.gpus, self._near, strict=True))
