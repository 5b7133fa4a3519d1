"""The columns that suites can show."""

from __future__ import annotations

import numpy as np

from rollmux_env.bench.intervals import ratio
from rollmux_env.bench.streams import ROUNDS
from rollmux_env.bench.suite import Column, Value
from rollmux_env.replay.dollar_bound import USD, USD_PER_WORK_HOUR, over
from rollmux_env.replay.outcome import Outcome


def _admitted(strategy: str) -> Value:
    """Return a function for the percentage of a strategy among all admissions, or None without admissions."""

    def value(own: Outcome, base: Outcome) -> float | None:
        every = sum(own.metrics.admissions.values())
        return 100 * own.metrics.admissions[strategy] / every if every else None

    return value


def _busy(pool: str) -> Value:
    """Return a function for the percentage of a pool's node time in which phases run, or None if the pool has no nodes."""

    def value(own: Outcome, base: Outcome) -> float | None:
        share = own.metrics.utilization[pool]
        return None if share is None else 100 * share

    return value


def _slo_observed(own: Outcome, base: Outcome) -> float:
    observed = own.metrics.slo_attainment_observed
    return 100 * (own.metrics.slo_attainment if observed is None else observed)


def _decision_ms(own: Outcome, base: Outcome) -> float:
    """Return the median time of the last hundred decisions, after warm-up.

    For a policy that decides about whole instants it is the time of the second round of arrivals.
    """
    seconds = own.decision_s[2] if len(own.decision_s) == ROUNDS * 2 else float(np.median(own.decision_s[-100:]))
    return 1e3 * seconds


def _extra(name: str, missing: float = 0.0) -> Value:
    return lambda own, base: _known(own, name, missing)


def _known(own: Outcome, name: str, missing: float) -> float:
    value = own.extra.get(name)
    return missing if value is None else value


def _over(name: str) -> Value:
    """Return a function for the ratio to the column's reference policy, or None if that one's figure is 0."""
    return lambda own, base: ratio(getattr(own.metrics, name), getattr(base.metrics, name))


def _of_fleet(name: str) -> Value:
    """Return a function for a figure that only fleets have, or None without it."""

    def value(own: Outcome, base: Outcome) -> float | None:
        figure = getattr(own.metrics, name)
        return None if figure is None else float(figure)

    return value


def _sooner(own: Outcome, base: Outcome) -> float | None:
    """Return the reference policy's mean completion over that of the policy."""
    hours, base_h = own.metrics.mean_completion_h, base.metrics.mean_completion_h
    return None if hours is None or base_h is None else base_h / hours


def _penalised(own: Outcome, base: Outcome) -> float | None:
    """Return the penalised cost over the reference policy's cost. A policy that keeps all SLOs pays no penalty."""
    return ratio(_known(own, "penalised_usd", own.metrics.cost_usd), base.metrics.cost_usd)


_cost, _work_cost = _over("cost_usd"), _over("usd_per_work_hour")
SAVING = Column("saving", lambda own, base: _cost(base, own), ("solo",))
SAVING_PER_WORK = Column("saving per work", lambda own, base: _work_cost(base, own), ("solo",))
OVER_OPTIMAL = Column("cost / optimal", _cost, ("optimal",))
PENALISED = Column("penalised cost / optimal", _penalised, ("optimal",))
WORK_OVER_OPTIMAL = Column("$/work-h / optimal", _work_cost, ("optimal-work",))
OVER_REGROUP = Column("cost / hourly regrouping", _cost, ("regroup",))
OVER_BOUND = Column("cost / bound", lambda own, base: over(own, "cost_usd", USD), bound=True)
WORK_OVER_BOUND = Column("$/work-h / bound", lambda own, base: over(own, "usd_per_work_hour", USD_PER_WORK_HOUR), bound=True)
COST = Column("thousand $", lambda own, base: own.metrics.cost_usd / 1000, digits=1, style="", grows=True)
SLO_KEPT = Column("SLO kept", lambda own, base: 100 * own.metrics.slo_attainment, digits=1, style="%")
SLO_OBSERVED = Column("SLO kept, observed", _slo_observed, digits=1, style="%", observed=True)
SLOWDOWN = Column("slowdown", lambda own, base: own.mean_slowdown)
ROLLOUT_GPUS = Column("peak rollout GPUs", lambda own, base: own.metrics.peak_gpus["rollout"], digits=0, style="", grows=True)
TRAINING_GPUS = Column("peak training GPUs", lambda own, base: own.metrics.peak_gpus["training"], digits=0, style="", grows=True)
ROLLOUT_BUSY = Column("rollout nodes busy", _busy("rollout"), digits=1, style="%")
TRAINING_BUSY = Column("training nodes busy", _busy("training"), digits=1, style="%")
PACKED = Column("packed", _admitted("direct_packing"), digits=1, style="%")
SCALED = Column("scaled", _admitted("rollout_scaling"), digits=1, style="%")
ISOLATED = Column("isolated", _admitted("isolated"), digits=1, style="%")
MIGRATIONS = Column("moves", lambda own, base: own.metrics.migrations, digits=0, style="")
WORK_COST = Column("$/work-h", lambda own, base: own.metrics.usd_per_work_hour, style="")
EVERY = Column("iterations apart", _extra("checkpoint_every", float("nan")), digits=1, style="")
RESTARTS = Column("restarts", _extra("restarts"), digits=0, style="")
LOST_WORK = Column("lost work-h", _extra("lost_work_h"), digits=1, style="")
LOST_SHARE = Column("lost of the work", lambda own, base: 100 * _known(own, "lost_work_h", 0.0) / own.metrics.work_h, style="%")
CHECKPOINT_H = Column("hours writing", _extra("checkpoint_h"), digits=1, style="")
COMPLETION = Column("completion h", _of_fleet("mean_completion_h"), digits=1, style="")
SOONER = Column("sooner", _sooner, ("solo",))
COMPLETION_P95 = Column("p95 h", _of_fleet("completion_p95_h"), digits=1, style="")
QUEUE = Column("queue h", _of_fleet("mean_queue_h"), digits=1, style="")
STRETCH = Column("stretch", _of_fleet("mean_stretch"), style="")
WORST_RHO = Column("worst rho", _of_fleet("worst_rho"), digits=1, style="")
JAIN = Column("Jain", _of_fleet("jain"), style="")
PARKS = Column("parks", _of_fleet("parks"), digits=0, style="")
BOUND = Column("bound h", _of_fleet("bound_completion_h"), digits=1, style="")
DECISION = Column("decision, ms", _decision_ms, digits=3, style="")
