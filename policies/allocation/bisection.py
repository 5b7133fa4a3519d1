"""Bisections of a budget's GPUs: which ones train, by AReaL-Hex's measure (arXiv 2511.00796).

The GPUs are the nodes of a graph whose edges are links. A bisection is the better the more of all link bandwidth lies inside the
training side, and of all memory bandwidth on the rollout side. GPUs of one type and machine are alike, and a side that fills
machine after machine has the most links inside, so numbers of GPUs say all, and the best one is found by looking at each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.allocation import Budget, Counts
from rollmux_env.timing.hardware import Hardware, link_between


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
