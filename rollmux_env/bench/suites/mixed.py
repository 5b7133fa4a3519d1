"""`mixed`: Algorithm 1 against the exact optimum on the paper's mixed simulation profile (section 6.5, Figure 20)."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import OVER_OPTIMUM, SAVING, SAVING_PER_WORK, SLO_KEPT, SLO_OBSERVED, WORK_OVER_OPTIMUM
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Suite

FIXED, EQUAL = "fixed stays", "equal work"
_POLICIES = ("solo", "random", "most-idle", "rollmux", "rollmux,prune=false", "consolidate")

SUITE = Suite(
    name="mixed",
    title="Mixed jobs: how far from the exact optimum",
    source="section 6.5, Figure 20",
    cases=(
        Case(FIXED, partial(workload, "mixed", stays="fixed"), (*_POLICIES, "optimal"), observed=_POLICIES),
        Case(EQUAL, partial(workload, "mixed"), (*_POLICIES, "optimal-work"), observed=_POLICIES),
    ),
    columns=(OVER_OPTIMUM, WORK_OVER_OPTIMUM, SAVING, SAVING_PER_WORK, SLO_KEPT, SLO_OBSERVED),
    paper={
        (FIXED, "rollmux", OVER_OPTIMUM.heading): 1.06,
        (FIXED, "random", OVER_OPTIMUM.heading): 1.97,
        (FIXED, "most-idle", OVER_OPTIMUM.heading): 1.66,
        (FIXED, "rollmux", SLO_OBSERVED.heading): 100.0,
    },
    differences=(
        "The paper's optimum above ten jobs is the best of sampled partitions; ours is exact (set partitioning, certified), "
        "so the gap is larger.",
        "With fixed stays random and most-idle cost less than the optimum because they break SLOs, and squeezed jobs leave "
        "on time all the same.",
        "SLO kept is of steady periods; observed is of an event replay at worst-case durations, where a newcomer waits for its "
        "group's next meta-iteration.",
    ),
)
