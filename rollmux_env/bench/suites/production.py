"""`production`: two weeks of production jobs (paper, section 6.4 and Figure 14), under both accountings."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import (
    COST,
    ISOLATED,
    OVER_OPTIMUM,
    PACKED,
    ROLLOUT_GPUS,
    SAVING,
    SAVING_PER_WORK,
    SCALED,
    SLO_KEPT,
    SLO_OBSERVED,
    TRAINING_GPUS,
    WORK_OVER_OPTIMUM,
)
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Suite

FIXED, EQUAL, PAPER = "fixed stays", "equal work", "the paper's semantics"
_REPLAYED = ("solo", "colocated", "rollmux", "rollmux,prune=false", "consolidate")  # gavel and the optimum have none by events
_POLICIES = (*_REPLAYED[:2], "gavel", *_REPLAYED[2:])

SUITE = Suite(
    name="production",
    title="Production replay",
    source="section 6.4, Figure 14",
    cases=(
        Case(FIXED, partial(workload, "production", stays="fixed"), (*_POLICIES, "optimal"), observed=_REPLAYED),
        Case(EQUAL, partial(workload, "production"), (*_POLICIES, "optimal-work"), observed=_REPLAYED),
        Case(PAPER, partial(workload, "production", stays="fixed", semantics="paper"), (*_POLICIES, "optimal"), observed=_REPLAYED),
    ),
    columns=(
        *(COST, SAVING, SAVING_PER_WORK, OVER_OPTIMUM, WORK_OVER_OPTIMUM, SLO_KEPT, SLO_OBSERVED),
        *(PACKED, SCALED, ISOLATED, ROLLOUT_GPUS, TRAINING_GPUS),
    ),
    paper={
        (case, policy, heading): value
        for case in (FIXED, PAPER)
        for (policy, heading), value in {
            ("solo", COST.heading): 347.9,
            ("colocated", COST.heading): 262.8,
            ("rollmux", COST.heading): 188.8,
            ("colocated", SAVING.heading): 1.32,
            ("rollmux", SAVING.heading): 1.84,
            ("rollmux", SLO_OBSERVED.heading): 100.0,
            ("rollmux", PACKED.heading): 60.5,
            ("rollmux", SCALED.heading): 15.0,
            ("rollmux", ISOLATED.heading): 24.5,
            ("solo", ROLLOUT_GPUS.heading): 328,
            ("solo", TRAINING_GPUS.heading): 328,
            ("rollmux", ROLLOUT_GPUS.heading): 216,
            ("rollmux", TRAINING_GPUS.heading): 152,
        }.items()
    },
    differences=(
        "Algorithm 1 as printed does not reach the paper's 1.84x on streams with the published statistics; it comes nearer with "
        "SLOs from U(1.1, 2), 32B jobs on one training node and no pruning of saturated groups (the third case).",
        "Packed, scaled and isolated are shares of all admissions: into a group as it is, with more rollout nodes, into a new one.",
        "SLO kept is of steady periods; observed is of an event replay at worst-case durations, where a newcomer waits for its "
        "group's next meta-iteration. The paper's 100% was observed.",
        "consolidate is not the paper's: it moves running jobs and pays for the moves; the paper's planner never moves one.",
        "With fixed stays a job that is slowed down does less work for its dollars; at equal work the saving is that of the "
        "second case.",
    ),
)
