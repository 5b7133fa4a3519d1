"""The columns that suites can show."""

from __future__ import annotations

import numpy as np

from rollmux_env.bench.streams import ROUNDS
from rollmux_env.bench.suite import Column
from rollmux_env.replay.metrics import Outcome


def _saving(own: Outcome, base: Outcome) -> float:
    return base.metrics.cost_usd / own.metrics.cost_usd


def _saving_per_work(own: Outcome, base: Outcome) -> float:
    return base.metrics.usd_per_work_hour / own.metrics.usd_per_work_hour


def _cost_over(own: Outcome, base: Outcome) -> float:
    return own.metrics.cost_usd / base.metrics.cost_usd


def _work_cost_over(own: Outcome, base: Outcome) -> float:
    return own.metrics.usd_per_work_hour / base.metrics.usd_per_work_hour


def _thousand_usd(own: Outcome, _: Outcome) -> float:
    return own.metrics.cost_usd / 1000


def _slo(own: Outcome, _: Outcome) -> float:
    return 100 * own.metrics.slo_attainment


def _slo_observed(own: Outcome, _: Outcome) -> float:
    return 100 * (
        own.metrics.slo_attainment if own.metrics.slo_attainment_observed is None else own.metrics.slo_attainment_observed
    )


def _slowdown(own: Outcome, _: Outcome) -> float:
    return float(np.mean(list(own.metrics.slowdown.values())))


def _rollout_gpus(own: Outcome, _: Outcome) -> float:
    return own.metrics.peak_gpus["rollout"]


def _training_gpus(own: Outcome, _: Outcome) -> float:
    return own.metrics.peak_gpus["training"]


def _rollout_busy(own: Outcome, _: Outcome) -> float | None:
    return _percent(own.metrics.utilization["rollout"])


def _training_busy(own: Outcome, _: Outcome) -> float | None:
    return _percent(own.metrics.utilization["training"])


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _admitted(own: Outcome, strategy: str) -> float | None:
    """Percent of all admissions; None where there were none."""
    every = sum(own.metrics.admissions.values())
    return 100 * own.metrics.admissions[strategy] / every if every else None


def _packed(own: Outcome, _: Outcome) -> float | None:
    return _admitted(own, "direct_packing")


def _scaled(own: Outcome, _: Outcome) -> float | None:
    return _admitted(own, "rollout_scaling")


def _isolated(own: Outcome, _: Outcome) -> float | None:
    return _admitted(own, "isolated")


def _migrations(own: Outcome, _: Outcome) -> float:
    return own.metrics.migrations


def _usd_per_work_hour(own: Outcome, _: Outcome) -> float:
    return own.metrics.usd_per_work_hour


def _lost_work_h(own: Outcome, _: Outcome) -> float:
    return own.extra.get("lost_work_h", 0.0)


def _lost_share(own: Outcome, _: Outcome) -> float:
    return 100 * _lost_work_h(own, own) / own.metrics.work_h


def _checkpoint_h(own: Outcome, _: Outcome) -> float:
    return own.extra.get("checkpoint_h", 0.0)


def _restarts(own: Outcome, _: Outcome) -> float:
    return own.extra.get("restarts", 0.0)


def _every(own: Outcome, _: Outcome) -> float:
    return own.extra.get("checkpoint_every", float("nan"))


def _decision_ms(own: Outcome, _: Outcome) -> float:
    """Time of the last hundred decisions, after warm-up; for a policy that decides whole instants, its second round of arrivals."""
    seconds = own.decision_s[2] if len(own.decision_s) == ROUNDS * 2 else float(np.median(own.decision_s[-100:]))
    return 1e3 * seconds


SAVING = Column("saving", _saving, ("solo",))
SAVING_PER_WORK = Column("saving per work", _saving_per_work, ("solo",))
OVER_OPTIMUM = Column("cost / optimum", _cost_over, ("optimal",))
WORK_OVER_OPTIMUM = Column("$/work-h / optimum", _work_cost_over, ("optimal-work",))
OVER_REGROUP = Column("cost / hourly regrouping", _cost_over, ("regroup",))
COST = Column("thousand $", _thousand_usd, digits=1, style="")
SLO_KEPT = Column("SLO kept", _slo, digits=1, style="%")
SLO_OBSERVED = Column("SLO kept, observed", _slo_observed, digits=1, style="%", observed=True)
SLOWDOWN = Column("slowdown", _slowdown)
ROLLOUT_GPUS = Column("peak rollout GPUs", _rollout_gpus, digits=0, style="")
TRAINING_GPUS = Column("peak training GPUs", _training_gpus, digits=0, style="")
ROLLOUT_BUSY = Column("rollout nodes busy", _rollout_busy, digits=1, style="%")
TRAINING_BUSY = Column("training nodes busy", _training_busy, digits=1, style="%")
PACKED = Column("packed", _packed, digits=1, style="%")
SCALED = Column("scaled", _scaled, digits=1, style="%")
ISOLATED = Column("isolated", _isolated, digits=1, style="%")
MIGRATIONS = Column("moves", _migrations, digits=0, style="")
WORK_COST = Column("$/work-h", _usd_per_work_hour, style="")
EVERY = Column("iterations apart", _every, digits=1, style="")
RESTARTS = Column("restarts", _restarts, digits=0, style="")
LOST_WORK = Column("lost work-h", _lost_work_h, digits=1, style="")
LOST_SHARE = Column("lost of the work", _lost_share, style="%")
CHECKPOINT_H = Column("hours writing", _checkpoint_h, digits=1, style="")
DECISION = Column("decision, ms", _decision_ms, digits=3, style="")
