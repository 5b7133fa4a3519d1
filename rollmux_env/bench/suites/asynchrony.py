"""`asynchrony`: what co-execution still saves where jobs are asynchronous (beyond the paper, whose jobs are on-policy)."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import COST, SAVING_PER_WORK, SLO_KEPT, WORK_OVER_OPTIMUM
from rollmux_env.bench.streams import stale
from rollmux_env.bench.suite import Case, Suite
from rollmux_env.workloads.asynchronous import SYNC_SHARE

PROFILES = ("balanced", "rollout-heavy", "train-heavy")
STALENESS = (0, 1, 2, 4, 8)
JOBS = 100

SUITE = Suite(
    name="asynchrony",
    title="Asynchronous jobs: what sharing nodes still saves",
    source="beyond the paper",
    cases=tuple(
        Case(
            f"{profile}, staleness {staleness}",
            partial(stale, profile, staleness, SYNC_SHARE, jobs=JOBS),
            ("solo", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work"),
        )
        for profile in PROFILES
        for staleness in STALENESS
    ),
    columns=(COST, SAVING_PER_WORK, WORK_OVER_OPTIMUM, SLO_KEPT),
    differences=(
        "Every job does as many iterations at any staleness, so dollars compare across all cases. Work-hours do not: T_solo is "
        "less where a job is stale.",
        f"A sync takes {SYNC_SHARE:.0%} of a job's rollout and training; without one all stalenesses from 1 on would be alike, as "
        "durations do not vary.",
        "The paper (as Weave) says that nothing is left where jobs are fully asynchronous. From a staleness of 2 on that is so for "
        "train-heavy jobs, and but for 1% for balanced ones. Rollout-heavy jobs still share training nodes.",
    ),
    seeds=3,
)
