"""Comparison of policies: means over seeds, and ratios to a baseline, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from pydantic import Field

from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean, mean_if_known, mean_interval, ratio, ratios
from rollmux_env.replay.completion import Shown
from rollmux_env.replay.dollar_bound import USD, USD_PER_WORK_HOUR, over
from rollmux_env.replay.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Completion and waiting under one policy, as means over seeds; None where nodes are unlimited and no job has waited.

    Attributes:
        mean_completion_h: Mean completion of the jobs, in hours.
        sooner: The baseline's mean completion over this policy's, or None where no job of the baseline has waited.
        completion_p95_h: 95th percentile of the completion, in hours.
        mean_queue_h: Mean time of jobs without a place, in hours.
        max_queue_h: Largest time of a job without a place, in hours.
        mean_stretch: Mean over jobs of the completion over the hours of the same work alone.
        worst_rho: Largest finish-time fairness.
        unfair_share: Share of the jobs that were later than with an even share of the fleet.
        jain: Jain's index of the users' mean stretches.
        fleet_busy: Share of the fleet's nodes that groups held, by pool; None for a pool without `max_nodes`.
        parks: Number of times that jobs were parked.
        bound_completion_h: Lower bound of the mean completion in hours, or None if it is unknown.
    """

    mean_completion_h: Shown[Mean] = None
    sooner: Shown[Mean] = None
    completion_p95_h: Shown[Mean] = None
    mean_queue_h: Shown[Mean] = None
    max_queue_h: Shown[Mean] = None
    mean_stretch: Shown[Mean] = None
    worst_rho: Shown[Mean] = None
    unfair_share: Shown[Mean] = None
    jain: Shown[Mean] = None
    fleet_busy: Shown[dict[str, float | None]] = None
    parks: Shown[Mean] = None
    bound_completion_h: Shown[Mean] = None


_MEANS = tuple(one.name for one in fields(Waiting) if one.name not in ("sooner", "fleet_busy"))


@dataclass(frozen=True)
class ComparisonRow(Waiting):
    """One policy over all seeds. Where jobs wait, `Waiting` has further figures.

    Attributes:
        policy: Name and options of the policy.
        cost_usd: Mean cost in $.
        usd_per_work_hour: Mean dollars per work-hour.
        saving: The baseline's cost over this policy's, or None if this policy's cost is 0.
        saving_per_work: The baseline's dollars per work-hour over this policy's, or None if this policy's are 0.
        slo_attainment: Mean SLO attainment, against worst cases.
        slo_attainment_observed: Mean SLO attainment against solo runs with the same durations; None for fluid replays.
        slowdown: Mean over seeds of the mean slowdown of jobs, against worst cases.
        slowdown_observed: Mean over seeds of the mean slowdown of jobs, against solo runs with the same durations; None for fluid
            replays.
        queueing_s: Mean over seeds of the mean seconds of jobs from arrival to admission.
        completion_s: Mean over seeds of the mean seconds of jobs from arrival to departure.
        gpus: Mean over seeds of the peak number of GPUs, by pool.
        packed: Share of the jobs that joined a group (direct packing and rollout scaling).
        lost_work_h: Mean hours of work that jobs repeated after failures; None for replays without failures.
        bound_usd: Mean lower bound of the stream's dollars, as in `rollmux_env.replay.dollar_bound`; None if it was not asked for,
            or does not hold for a run.
        over_bound: Cost over that bound.
        over_bound_per_work: Dollars per work-hour over their bound.
        decision_ms: Median over all decisions in milliseconds, or None without decisions. It is not part of the JSON, since it
            differs between runs.
    """

    policy: str
    cost_usd: Mean
    usd_per_work_hour: Mean
    saving: Mean | None
    saving_per_work: Mean | None
    slo_attainment: Mean
    slo_attainment_observed: Mean | None
    slowdown: Mean
    slowdown_observed: Mean | None
    queueing_s: Mean
    completion_s: Mean
    gpus: dict[str, float]
    packed: float
    lost_work_h: Mean | None = None
    bound_usd: Shown[Mean] = None
    over_bound: Shown[Mean] = None
    over_bound_per_work: Shown[Mean] = None
    decision_ms: Annotated[float | None, Field(exclude=True)] = None


def compare(results: Sequence[Result], baseline: str) -> list[ComparisonRow]:
    """Return one row per policy, in order of first appearance.

    Args:
        results: Results of every contender on the same seeds.
        baseline: Name of the contender to which ratios are formed.
    """
    every = by_policy(results)
    base = [result.outcome.metrics for result in every[baseline]]
    return [_row(policy, own, base) for policy, own in every.items()]


def by_policy(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group results by policy, in order of first appearance. Each policy's results are sorted by seed, which pairs them."""
    every: dict[str, list[Result]] = {result.spec: [] for result in results}
    for result in sorted(results, key=lambda result: result.seed):
        every[result.spec].append(result)
    return every


class _Runs:
    """The runs of a policy on all seeds, and those of the baseline on the same seeds."""

    def __init__(self, results: list[Result], base: list[Metrics]) -> None:
        self.outcomes, self.base = [result.outcome for result in results], base
        self.metrics = [outcome.metrics for outcome in self.outcomes]

    def mean(self, name: str) -> Mean:
        """Return the mean of a figure over the seeds."""
        return mean_interval([getattr(metrics, name) for metrics in self.metrics])

    def to_base(self, name: str) -> Mean | None:
        """Return the mean ratio of the baseline's figure and the policy's."""
        those, own = ([getattr(metrics, name) for metrics in runs] for runs in (self.base, self.metrics))
        return mean_if_known(ratios(those, own))

    def over_jobs(self, name: str) -> Mean:
        """Return the mean over the seeds of the mean of a figure over the jobs."""
        return mean_interval([float(np.mean([getattr(job, name) for job in outcome.jobs])) for outcome in self.outcomes])

    def over_bound(self, name: str, bound: str) -> Mean | None:
        """Return the mean ratio of a figure and its bound."""
        return mean_if_known([over(outcome, name, bound) for outcome in self.outcomes])

    def extra(self, name: str) -> Mean | None:
        """Return the mean of a figure that only some replays have."""
        return mean_if_known([outcome.extra.get(name) for outcome in self.outcomes])

    def gpus(self) -> dict[str, float]:
        """Return the mean of the largest number of GPUs of each pool."""
        return {name: float(np.mean([metrics.peak_gpus[name] for metrics in self.metrics])) for name in self.metrics[0].peak_gpus}

    def decision_ms(self) -> float | None:
        """Return the median time of all decisions, or None without decisions."""
        seconds = [one for outcome in self.outcomes for one in outcome.decision_s]
        return float(np.median(seconds)) * 1e3 if seconds else None


def _row(policy: str, results: list[Result], base: list[Metrics]) -> ComparisonRow:
    runs = _Runs(results, base)
    observed = runs.metrics[0].slo_attainment_observed is not None
    return ComparisonRow(
        policy=policy,
        cost_usd=runs.mean("cost_usd"),
        usd_per_work_hour=runs.mean("usd_per_work_hour"),
        saving=runs.to_base("cost_usd"),
        saving_per_work=runs.to_base("usd_per_work_hour"),
        **vars(_waiting(runs.metrics, base)),
        slo_attainment=runs.mean("slo_attainment"),
        slo_attainment_observed=mean_if_known([metrics.slo_attainment_observed for metrics in runs.metrics]),
        slowdown=mean_interval([float(np.mean(list(metrics.slowdown.values()))) for metrics in runs.metrics]),
        slowdown_observed=runs.over_jobs("slowdown_observed") if observed else None,
        queueing_s=runs.over_jobs("queueing_s"),
        completion_s=runs.over_jobs("completion_s"),
        gpus=runs.gpus(),
        packed=_compute_packed_share(runs.metrics),
        lost_work_h=runs.extra("lost_work_h"),
        bound_usd=runs.extra(USD),
        over_bound=runs.over_bound("cost_usd", USD),
        over_bound_per_work=runs.over_bound("usd_per_work_hour", USD_PER_WORK_HOUR),
        decision_ms=runs.decision_ms(),
    )


def _waiting(every: Sequence[Metrics], base: Sequence[Metrics]) -> Waiting:
    """Return the completion and waiting of a policy, beside the baseline on the same seeds."""
    own = [metrics.mean_completion_h for metrics in every]
    if None in own:
        return Waiting()
    pairs = zip((metrics.mean_completion_h for metrics in base), own, strict=True)
    sooner = [None if base_h is None or hours is None else ratio(base_h, hours) for base_h, hours in pairs]
    means = {name: mean_if_known([getattr(metrics, name) for metrics in every]) for name in _MEANS}
    busy = [metrics.fleet_busy or {} for metrics in every]
    shares = {name: mean_if_known([shares[name] for shares in busy]) for name in busy[0]}
    known = {name: None if share is None else share.mean for name, share in shares.items()}
    return Waiting(**means, sooner=mean_if_known(sooner), fleet_busy=known)


def _compute_packed_share(every: Sequence[Metrics]) -> float:
    """Return the share of the admitted jobs that joined a group."""
    admitted = sum(sum(metrics.admissions.values()) for metrics in every)
    return (admitted - sum(metrics.admissions["isolated"] for metrics in every)) / max(1, admitted)
