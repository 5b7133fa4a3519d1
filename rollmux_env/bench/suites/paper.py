"""Suites of the paper's own comparisons of placement policies (RollMux, arXiv 2512.11306), beside its figures."""

from __future__ import annotations

from functools import partial
from typing import Any

from rollmux_env.bench import columns
from rollmux_env.bench.streams import apart, crowd, drifting, workload
from rollmux_env.bench.suite import Case, Suite, published_suite

FIXED, EQUAL, PAPER = "fixed stays", "equal work", "the paper's semantics"
FLUID, EVENT = "worst case", "every phase, with switches"


def _micro(name: str) -> Suite:
    """Two or three jobs that share nodes."""
    return published_suite(
        "rollmux",
        name,
        (
            Case(FLUID, partial(workload, f"micro-{name}"), ("solo", "gavel", "colocated", "rollmux")),
            Case(
                EVENT,
                partial(workload, f"micro-{name}", switches=True),
                ("solo", "colocated", "rollmux", "rollmux,switches=true"),
                "round-robin",
            ),
        ),
        (columns.SAVING_PER_WORK, columns.SLOWDOWN, columns.SLO_KEPT),
        seeds=1,
    )


# Two weeks of production jobs, under both accountings; gavel and the optimum have no replay by events.
_REPLAYED = ("solo", "colocated", "rollmux", "rollmux,prune=false", "consolidate")
_PLACED = (*_REPLAYED[:2], "gavel", *_REPLAYED[2:])
_PRODUCTION = published_suite(
    "rollmux",
    "production",
    (
        Case(FIXED, partial(workload, "production", stays="fixed"), (*_PLACED, "optimal"), observed=_REPLAYED),
        Case(EQUAL, partial(workload, "production"), (*_PLACED, "optimal-work"), observed=_REPLAYED),
        Case(PAPER, partial(workload, "production", stays="fixed", semantics="paper"), (*_PLACED, "optimal"), observed=_REPLAYED),
    ),
    (
        *(columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM),
        *(columns.SLO_KEPT, columns.SLO_OBSERVED, columns.PACKED, columns.SCALED, columns.ISOLATED),
        *(columns.ROLLOUT_GPUS, columns.TRAINING_GPUS),
    ),
)

_SHARING = ("rollmux", "random", "most-idle")


def _stream(label: str, name: str, sharing: tuple[str, ...], **options: Any) -> Case:
    return Case(label, partial(workload, name, stays="fixed", **options), ("solo", *sharing, "optimal"), observed=sharing)


_SENSITIVITY = published_suite(
    "rollmux",
    "sensitivity",
    (
        *(_stream(f"type {name}", name, _SHARING) for name in ("balanced", "rollout-heavy", "train-heavy", "mixed")),
        *(_stream(f"SLO {slo}", "mixed", ("rollmux",), slo=(slo, slo)) for slo in (1.2, 1.5, 2.0)),
        *(_stream(f"group size {size}", "mixed", ("rollmux",), max_group_size=size) for size in (2, 3, 4, 5)),
    ),
    (columns.OVER_OPTIMUM, columns.SAVING, columns.SLO_KEPT, columns.SLO_OBSERVED),
    seeds=3,
)

_LATENCY = published_suite(
    "rollmux",
    "latency",
    tuple(
        Case(f"{jobs:,} active jobs", partial(crowd, jobs), ("rollmux", "optimal") if jobs in (5, 9, 13) else ("rollmux",))
        for jobs in (5, 9, 13, 100, 500, 1000, 2000, 20000)
    ),
    (columns.DECISION,),
    seeds=3,
)

_MIXED_POLICIES = ("solo", "random", "most-idle", "rollmux", "rollmux,prune=false", "consolidate")
_MIXED = published_suite(
    "rollmux",
    "mixed",
    (
        Case(FIXED, partial(workload, "mixed", stays="fixed"), (*_MIXED_POLICIES, "optimal"), observed=_MIXED_POLICIES),
        Case(EQUAL, partial(workload, "mixed"), (*_MIXED_POLICIES, "optimal-work"), observed=_MIXED_POLICIES),
    ),
    (
        *(columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM, columns.SAVING, columns.SAVING_PER_WORK),
        *(columns.SLO_KEPT, columns.SLO_OBSERVED),
    ),
)

# Phase durations change while jobs run. In every case but the first, each job draws its drift from the paper's templates: none,
# 0.5x, 1.0x or 1.5x.
_DRIFT = published_suite(
    "rollmux",
    "drift",
    tuple(
        Case(
            template,
            partial(drifting, "production", template),
            ("solo", "random", "most-idle", "rollmux", "regroup"),
            dispatch="round-robin",
        )
        for template in ("none", "increasing", "decreasing", "mixed")
    ),
    (
        *(columns.COST, columns.OVER_REGROUP, columns.SLO_KEPT, columns.SLO_OBSERVED),
        *(columns.ROLLOUT_BUSY, columns.TRAINING_BUSY, columns.MIGRATIONS),
    ),
    seeds=3,
)

_SOLO_S = 257.7  # an iteration of a 7B job alone
_CONTENTION = published_suite(
    "rollmux",
    "contention",
    tuple(
        Case(label, stream, ("solo", "naive", "rollmux"))
        for label, stream in (
            ("two 7B jobs at once", partial(workload, "micro-temporal")),
            ("a quarter iteration apart", partial(apart, "micro-temporal", _SOLO_S / 4)),
            ("half an iteration apart", partial(apart, "micro-temporal", _SOLO_S / 2)),
            ("three jobs, one training node", partial(workload, "micro-rollout-heavy")),
            ("a 32B job and two 8B jobs", partial(workload, "micro-spatial")),
            ("production, equal work", partial(workload, "production")),
        )
    ),
    (columns.SAVING_PER_WORK, columns.SLOWDOWN, columns.SLO_KEPT, columns.ROLLOUT_BUSY, columns.TRAINING_BUSY),
    seeds=3,
)

SUITES = (*map(_micro, ("temporal", "rollout-heavy", "spatial")), _PRODUCTION, _SENSITIVITY, _LATENCY, _MIXED, _DRIFT, _CONTENTION)
