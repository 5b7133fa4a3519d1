"""Differences of every two policies, paired by seed, with their tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rollmux_env.bench.comparison import by_policy
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean, mean_if_known, mean_interval, ratio
from rollmux_env.replay.completion import Shown


@dataclass(frozen=True)
class Difference:
    """The difference of two policies, paired by seed: the figure of `policy` minus that of `other`.

    Attributes:
        policy: Name and options of the first policy.
        other: Name and options of the second policy.
        cost_usd: Mean difference of the costs, in $.
        usd_per_work_hour: Mean difference of the dollars per work-hour.
        slowdown: Mean difference of the mean slowdowns of jobs, as observed if they were observed.
        cost_ratio: Cost of `other` over that of `policy`, or None if the latter is 0.
        mean_completion_h: Mean difference of the mean completions in hours; None where jobs do not wait.
        completion_ratio: Mean completion of `other` over that of `policy`; None where jobs do not wait.
        p: Two-sided p-value of each difference by its name, of the paired t-test that its interval also rests on. None with one
            seed, or if the difference is the same for all seeds and not 0.
        p_holm: The same after Holm's correction for all pairs of policies.
    """

    policy: str
    other: str
    cost_usd: Mean
    usd_per_work_hour: Mean
    slowdown: Mean
    cost_ratio: Mean | None
    mean_completion_h: Shown[Mean] = None
    completion_ratio: Shown[Mean] = None
    p: Mapping[str, float | None] = field(default_factory=dict)
    p_holm: Mapping[str, float | None] = field(default_factory=dict)


class _Figures(NamedTuple):
    """Figures of one policy on one seed of which differences are formed; None for one that there is not."""

    cost_usd: float
    usd_per_work_hour: float
    slowdown: float
    mean_completion_h: float | None


def differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Return the difference of every two policies, in order of first appearance."""
    figures = {policy: [_figures(result) for result in own] for policy, own in by_policy(results).items()}
    rows = [_difference(policy, other, figures[policy], figures[other]) for policy, other in combinations(figures, 2)]
    names = dict.fromkeys(name for row in rows for name in row.p)  # jobs may wait under some policies alone
    corrected = {name: holm([row.p.get(name) for row in rows]) for name in names}
    return tuple(replace(row, p_holm={name: corrected[name][k] for name in row.p}) for k, row in enumerate(rows))


def _figures(result: Result) -> _Figures:
    metrics = result.outcome.metrics
    return _Figures(metrics.cost_usd, metrics.usd_per_work_hour, result.outcome.mean_slowdown, metrics.mean_completion_h)


def _difference(policy: str, other: str, own: Sequence[_Figures], others: Sequence[_Figures]) -> Difference:
    less: dict[str, list[float]] = {}
    for name in _Figures._fields:
        pairs = [(getattr(one, name), getattr(two, name)) for one, two in zip(own, others, strict=True)]
        if all(None not in pair for pair in pairs):
            less[name] = [one - two for one, two in pairs]
    hours = [(one.mean_completion_h, two.mean_completion_h) for one, two in zip(own, others, strict=True)]
    return Difference(
        policy,
        other,
        mean_interval(less["cost_usd"]),
        mean_interval(less["usd_per_work_hour"]),
        mean_interval(less["slowdown"]),
        mean_if_known([ratio(two.cost_usd, one.cost_usd) for one, two in zip(own, others, strict=True)]),
        mean_if_known(less.get("mean_completion_h", ())),
        mean_if_known([None if one is None or two is None else two / one for one, two in hours]),
        {name: p_value(values) for name, values in less.items()},
    )


def p_value(values: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a mean of 0 by Student's t-test.

    Args:
        values: Difference of each seed.

    Returns:
        The p-value; 1 if all differences are 0; None if there are fewer than two, or they do not vary.
    """
    from scipy.special import stdtr  # scipy takes long to import, and one seed needs none

    sample = np.asarray(values, dtype=float)
    if not sample.any():
        return 1.0 if sample.size > 1 else None
    if sample.size < 2 or np.ptp(sample) <= 1e-12 * np.abs(sample).max():
        return None
    t = sample.mean() / (sample.std(ddof=1) / np.sqrt(sample.size))
    return float(2 * stdtr(sample.size - 1, -abs(t)))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values after Holm's step-down correction (Scand. J. Statist. 6, 1979). None stays None, and is no test."""
    order = sorted((value, k) for k, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for done, (value, k) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - done)))
        corrected[k] = largest
    return corrected
