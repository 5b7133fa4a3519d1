"""Suites of the paper's own comparisons of placement policies (RollMux, arXiv 2512.11306), beside its figures."""

from __future__ import annotations

from functools import partial
from typing import Any

from rollmux_env.bench import columns
from rollmux_env.bench.streams import apart, crowd, drifting, workload
from rollmux_env.bench.suite import Case, Column, Suite

FIXED, EQUAL, PAPER = "fixed stays", "equal work", "the paper's semantics"
FLUID, EVENT = "worst case", "every phase, with switches"
_OBSERVED = (
    "SLO kept is of steady periods; observed is of an event replay at worst-case durations, where a newcomer waits for its group's "
    "next meta-iteration."
)

# Two or three jobs sharing nodes. Its savings: gavel, colocated, rollmux.
_MICRO_PAPER = {"temporal": (1.06, 1.24, 1.82), "rollout-heavy": (1.33, 1.41, 1.90), "spatial": (1.12, 1.39, 1.99)}
_MICRO_TITLES = {
    "temporal": "Two 7B jobs take turns on one node of each pool",
    "rollout-heavy": "Three jobs on three rollout nodes share one training node",
    "spatial": "A 32B job on 2+2 nodes shares them with two 8B jobs",
}
_MICRO_DIFFERENCES = {
    "temporal": "Two equal jobs on one node pair gain 2x less the slowdown: 1.6% in the paper's iterations, more in its 1.82x.",
    "rollout-heavy": "3 x 57.04 $/h over 86.64 $/h is 1.97x if nobody is slowed down. With the catalogue's 8B times strict round "
    "robin makes the 8B jobs wait for the 14B job; the paper's 1.90x needs jobs of about equal length.",
    "spatial": "228.16 $/h over 114.08 $/h is 2x if nobody is slowed down. With the catalogue's 8B times strict round robin makes "
    "the 8B jobs wait for the 32B job.",
}


def _micro(name: str) -> Suite:
    figures = dict(zip(("gavel", "colocated", "rollmux"), _MICRO_PAPER[name], strict=True))
    return Suite(
        name=name,
        title=_MICRO_TITLES[name],
        source="Table 4, Figure 10",
        cases=(
            Case(FLUID, partial(workload, f"micro-{name}"), ("solo", "gavel", "colocated", "rollmux")),
            Case(
                EVENT,
                partial(workload, f"micro-{name}", switches=True),
                ("solo", "colocated", "rollmux", "rollmux,switches=true"),
                "round-robin",
            ),
        ),
        columns=(columns.SAVING_PER_WORK, columns.SLOWDOWN, columns.SLO_KEPT),
        paper={
            (case, policy, columns.SAVING_PER_WORK.heading): value
            for case in (FLUID, EVENT)
            for policy, value in figures.items()
            if (case, policy) != (EVENT, "gavel")
        },
        differences=(
            _MICRO_DIFFERENCES[name],
            "Phase times are derived from the printed solo iterations. Co-located jobs run at their disaggregated speed, as the "
            "paper prints no other for these jobs, so they and gavel gain the price ratio 57.04 / 42.24.",
            "Without switches=true no switch is planned, so a job whose SLO was just kept can miss it.",
        ),
        seeds=1,
    )


# Two weeks of production jobs, under both accountings; gavel and the optimum have no replay by events.
_REPLAYED = ("solo", "colocated", "rollmux", "rollmux,prune=false", "consolidate")
_PLACED = (*_REPLAYED[:2], "gavel", *_REPLAYED[2:])
_PRODUCTION_PAPER: dict[Column, dict[str, float]] = {
    columns.COST: {"solo": 347.9, "colocated": 262.8, "rollmux": 188.8},
    columns.SAVING: {"colocated": 1.32, "rollmux": 1.84},
    columns.SLO_OBSERVED: {"rollmux": 100.0},
    columns.PACKED: {"rollmux": 60.5},
    columns.SCALED: {"rollmux": 15.0},
    columns.ISOLATED: {"rollmux": 24.5},
    columns.ROLLOUT_GPUS: {"solo": 328, "rollmux": 216},
    columns.TRAINING_GPUS: {"solo": 328, "rollmux": 152},
}
_PRODUCTION = Suite(
    name="production",
    title="Production replay",
    source="section 6.4, Figure 14",
    cases=(
        Case(FIXED, partial(workload, "production", stays="fixed"), (*_PLACED, "optimal"), observed=_REPLAYED),
        Case(EQUAL, partial(workload, "production"), (*_PLACED, "optimal-work"), observed=_REPLAYED),
        Case(PAPER, partial(workload, "production", stays="fixed", semantics="paper"), (*_PLACED, "optimal"), observed=_REPLAYED),
    ),
    columns=(
        *(columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM),
        *(columns.SLO_KEPT, columns.SLO_OBSERVED, columns.PACKED, columns.SCALED, columns.ISOLATED),
        *(columns.ROLLOUT_GPUS, columns.TRAINING_GPUS),
    ),
    paper={
        (case, policy, column.heading): value
        for case in (FIXED, PAPER)
        for column, values in _PRODUCTION_PAPER.items()
        for policy, value in values.items()
    },
    differences=(
        "Algorithm 1 as printed does not reach the paper's 1.84x on streams with the published statistics; it comes nearer with "
        "SLOs from U(1.1, 2), 32B jobs on one training node and no pruning of saturated groups (the third case).",
        "Packed, scaled and isolated are shares of all admissions: into a group as it is, with more rollout nodes, into a new one.",
        f"{_OBSERVED} The paper's 100% was observed.",
        "consolidate is not the paper's: it moves running jobs and pays for the moves; the paper's planner never moves one.",
        "With fixed stays a job that is slowed down does less work for its dollars; at equal work the saving is that of the "
        "second case.",
    ),
)

# Job types, SLOs and group sizes. Its cost over its optimum; types: rollmux, random, most-idle; SLOs and group sizes: rollmux.
_TYPES = {
    "balanced": (1.12, 2.00, 1.75),
    "rollout-heavy": (1.10, 1.92, 1.89),
    "train-heavy": (1.01, 1.72, 1.38),
    "mixed": (1.06, 1.97, 1.66),
}
_SLOS = {1.2: 1.07, 1.5: 1.07, 2.0: 1.07}
_SIZES = {2: 1.10, 3: 1.07, 4: 1.06, 5: 1.06}
_SHARING = ("rollmux", "random", "most-idle")
_OVER, _KEPT = columns.OVER_OPTIMUM.heading, columns.SLO_OBSERVED.heading


def _stream(label: str, name: str, sharing: tuple[str, ...], **options: Any) -> Case:
    return Case(label, partial(workload, name, stays="fixed", **options), ("solo", *sharing, "optimal"), observed=sharing)


_SENSITIVITY = Suite(
    name="sensitivity",
    title="Job types, SLOs and group sizes on Philly-like arrivals, fixed stays",
    source="section 6.5, Figure 15",
    cases=(
        *(_stream(f"type {name}", name, _SHARING) for name in _TYPES),
        *(_stream(f"SLO {slo}", "mixed", ("rollmux",), slo=(slo, slo)) for slo in _SLOS),
        *(_stream(f"group size {size}", "mixed", ("rollmux",), max_group_size=size) for size in _SIZES),
    ),
    columns=(columns.OVER_OPTIMUM, columns.SAVING, columns.SLO_KEPT, columns.SLO_OBSERVED),
    paper={
        **{(f"type {name}", policy, _OVER): x for name, xs in _TYPES.items() for policy, x in zip(_SHARING, xs, strict=True)},
        **{(f"SLO {slo}", "rollmux", _OVER): x for slo, x in _SLOS.items()},
        **{(f"group size {size}", "rollmux", _OVER): x for size, x in _SIZES.items()},
        **{(f"type {name}", "rollmux", _KEPT): 100.0 for name in _TYPES},
    },
    differences=(
        "The paper's optimum above ten jobs is the best of sampled partitions; ours is exact, so Algorithm 1's gap is larger.",
        "The paper does not say whom random and most-idle turn away; ours keep what is physical and break SLOs, which is cheap "
        "with fixed stays.",
        f"{_OBSERVED} The paper's 100% was observed.",
    ),
    seeds=3,
)

# Seconds of a decision, and of the optimum by brute force.
_DECISION_MS = {5: 5.6, 9: 6.5, 13: 7.6, 100: 41.9, 500: 198.0, 1000: 318.0, 2000: 591.0}
_BRUTE_FORCE_MS = {5: 113.0, 13: 5 * 3600e3}
_EXACT = (5, 9, 13)
_ACTIVE = "{:,} active jobs"
_LATENCY = Suite(
    name="latency",
    title="Time of a decision",
    source="Table 5",
    cases=tuple(
        Case(_ACTIVE.format(jobs), partial(crowd, jobs), ("rollmux", "optimal") if jobs in _EXACT else ("rollmux",))
        for jobs in (*_DECISION_MS, 20000)
    ),
    columns=(columns.DECISION,),
    paper={
        (_ACTIVE.format(jobs), policy, columns.DECISION.heading): ms
        for policy, by_jobs in (("rollmux", _DECISION_MS), ("optimal", _BRUTE_FORCE_MS))
        for jobs, ms in by_jobs.items()
    },
    differences=(
        "The paper's times are from its own machine; its optimum is brute force (at 13 jobs: over 5 h), ours set partitioning.",
    ),
    seeds=3,
)

_MIXED_POLICIES = ("solo", "random", "most-idle", "rollmux", "rollmux,prune=false", "consolidate")
_MIXED = Suite(
    name="mixed",
    title="Mixed jobs: how far from the exact optimum",
    source="section 6.5, Figure 20",
    cases=(
        Case(FIXED, partial(workload, "mixed", stays="fixed"), (*_MIXED_POLICIES, "optimal"), observed=_MIXED_POLICIES),
        Case(EQUAL, partial(workload, "mixed"), (*_MIXED_POLICIES, "optimal-work"), observed=_MIXED_POLICIES),
    ),
    columns=(
        *(columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM, columns.SAVING, columns.SAVING_PER_WORK),
        *(columns.SLO_KEPT, columns.SLO_OBSERVED),
    ),
    paper={
        (FIXED, "rollmux", _OVER): 1.06,
        (FIXED, "random", _OVER): 1.97,
        (FIXED, "most-idle", _OVER): 1.66,
        (FIXED, "rollmux", _KEPT): 100.0,
    },
    differences=(
        "The paper's optimum above ten jobs is the best of sampled partitions; ours is exact (set partitioning, certified), "
        "so the gap is larger.",
        "With fixed stays random and most-idle cost less than the optimum because they break SLOs, and squeezed jobs leave "
        "on time all the same.",
        _OBSERVED,
    ),
)

# Phase durations change while jobs run. In every case but the first, each job draws its drift from the paper's templates: none,
# 0.5x, 1.0x or 1.5x. Its cost over hourly regrouping, and SLOs kept.
_DRIFT_PAPER = {"increasing": (1.11, 98.6), "decreasing": (1.10, 98.7), "mixed": (1.08, 95.6)}
_DRIFT = Suite(
    name="drift",
    title="Drifting phases: production jobs, event replay",
    source="section 6.6, Figure 17",
    cases=tuple(
        Case(
            template,
            partial(drifting, "production", template),
            ("solo", "random", "most-idle", "rollmux", "regroup"),
            dispatch="round-robin",
        )
        for template in ("none", *_DRIFT_PAPER)
    ),
    columns=(
        *(columns.COST, columns.OVER_REGROUP, columns.SLO_KEPT, columns.SLO_OBSERVED),
        *(columns.ROLLOUT_BUSY, columns.TRAINING_BUSY, columns.MIGRATIONS),
    ),
    paper={
        (template, "rollmux", heading): value
        for template, values in _DRIFT_PAPER.items()
        for heading, value in zip((columns.OVER_REGROUP.heading, _KEPT), values, strict=True)
    },
    differences=(
        "Hourly regrouping saves as much without drift (first case): most of the ratio is Algorithm 1's distance from the optimum.",
        "Observed SLOs miss where a newcomer waits to enter its group's next meta-iteration, which no planner counts.",
        "Printed are the templates and the drift's size after 88 steps. Assumed are equal chances of none, 0.5x, 1.0x and 1.5x for "
        "every job, in mixed a fair coin for the direction, and the shape of a ramp (rollmux_env/timing/drift.py).",
        "random and most-idle cost little because they break SLOs.",
    ),
    seeds=3,
)

_SOLO_S = 257.7  # an iteration of a 7B job alone
_CONTENTION = Suite(
    name="contention",
    title="Sharing nodes with and without an order of phases",
    source="after Figure 3",
    cases=tuple(
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
    columns=(columns.SAVING_PER_WORK, columns.SLOWDOWN, columns.SLO_KEPT, columns.ROLLOUT_BUSY, columns.TRAINING_BUSY),
    differences=(
        "We have no values of the paper's figure. The cases are ours, the smallest that show what it is about.",
        "naive has rollmux's groups, and lets every phase run as soon as its job is ready: phases that meet on a node share it "
        "evenly. What two phases at once cost in memory, caches and switches is not counted, so this is its best case.",
    ),
    seeds=3,
)

SUITES = (*map(_micro, _MICRO_PAPER), _PRODUCTION, _SENSITIVITY, _LATENCY, _MIXED, _DRIFT, _CONTENTION)
