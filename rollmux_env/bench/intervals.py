"""Means over seeds and their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mean:
    """A mean over seeds.

    Attributes:
        mean: Mean over the seeds.
        half_width: Half-width of its 95% interval (Student's t), or None with a single seed.
    """

    mean: float
    half_width: float | None

    def text(self, digits: int = 3, unit: str = "") -> str:
        """Return a text such as `1.563 ± 0.021`, the mean alone, or with a unit `1.563x ± 0.021`."""
        spread = "" if self.half_width is None else f" ± {self.half_width:,.{digits}f}"
        return f"{self.mean:,.{digits}f}{unit}{spread}"


def mean_interval(values: Sequence[float]) -> Mean:
    """Return the mean of one value per seed, with the half-width of its 95% interval.

    To compare two policies, pass the seeds' differences or ratios: the interval is then paired.
    """
    sample = np.asarray(values, dtype=float)
    if sample.size < 2:
        return Mean(float(sample.mean()), None)
    from scipy.special import stdtrit

    error = sample.std(ddof=1) / np.sqrt(sample.size)
    return Mean(float(sample.mean()), float(stdtrit(sample.size - 1, 0.975) * error))


def mean_if_known(values: Sequence[float | None]) -> Mean | None:
    """Return the mean of one value per seed, or None if a seed has no value or there are no seeds."""
    known = [value for value in values if value is not None]
    return mean_interval(known) if known and len(known) == len(values) else None


def ratio(above: float, below: float) -> float | None:
    """Divide two figures, or return None if the second is 0, such as the dollars of free nodes."""
    return above / below if below else None


def ratios(base: Sequence[float], own: Sequence[float]) -> list[float | None]:
    """Return the base's figures divided by a policy's, seed by seed; None if the policy's figure is 0."""
    return [ratio(a, b) for a, b in zip(base, own, strict=True)]


def interval_note(seeds: int) -> str:
    """Return the note on the ± of a table, to follow other notes; empty with a single seed, which has no interval."""
    if seeds < 2:
        return ""
    few = ", and rests on two samples: more seeds narrow it" if seeds == 2 else ""
    return f"; ± is the half-width of a 95% interval, paired by seed{few}"
