"""A class job: an evolution strategy that tunes a few numbers, sampled in its rollouts and updated in its trainings.

    rollmux run examples/own_job.yaml

Nothing here knows about nodes or other jobs. `rollmux run` gives each phase a permit when its turn has come, moves the process to
the node's cores, and lets the other job run meanwhile. The class also works without it: the phases are plain methods.
"""

from __future__ import annotations

import random

import rollmux


class Evolution:
    """Finds the numbers with the greatest worth.

    Args:
        target: Numbers that it should find.
        samples: Number of candidates of an iteration.
        seed: Seed of the candidates.
    """

    def __init__(self, target: list[float], samples: int = 20000, seed: int = 0) -> None:
        self.target, self.samples = target, samples
        self.numbers = [0.0] * len(target)
        self.width = 0.5
        self.random = random.Random(seed)
        self.candidates: list[list[float]] = []

    @rollmux.phase("rollout")
    def sample(self) -> None:
        """Draw candidates around the numbers; the worst case has the same number of them."""
        self.candidates = []
        for k in range(self.samples):
            self.candidates.append([self.random.gauss(number, self.width) for number in self.numbers])
            if k % 1000 == 0:
                rollmux.runtime_hook.progress(k, self.samples)

    @rollmux.phase("train")
    def update(self) -> None:
        """Go to the mean of the best candidates."""
        self.candidates.sort(key=self.worth, reverse=True)
        best = self.candidates[: self.samples // 20]
        self.numbers = [sum(column) / len(best) for column in zip(*best, strict=True)]
        self.width *= 0.9
        rollmux.runtime_hook.report(reward=self.worth(self.numbers))

    def worth(self, numbers: list[float]) -> float:
        """0 at the target, less elsewhere."""
        return -sum((number - wanted) ** 2 for number, wanted in zip(numbers, self.target, strict=True))
