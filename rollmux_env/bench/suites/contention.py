"""`contention`: jobs that share nodes with and without an order of their phases (what the paper's Figure 3 is about)."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import ROLLOUT_BUSY, SAVING_PER_WORK, SLO_KEPT, SLOWDOWN, TRAINING_BUSY
from rollmux_env.bench.streams import apart, workload
from rollmux_env.bench.suite import Case, Suite

_POLICIES = ("solo", "naive", "rollmux")
_SOLO_S = 257.7  # an iteration of a 7B job alone

SUITE = Suite(
    name="contention",
    title="Sharing nodes with and without an order of phases",
    source="after Figure 3",
    cases=(
        Case("two 7B jobs at once", partial(workload, "micro-temporal"), _POLICIES),
        Case("a quarter iteration apart", partial(apart, "micro-temporal", _SOLO_S / 4), _POLICIES),
        Case("half an iteration apart", partial(apart, "micro-temporal", _SOLO_S / 2), _POLICIES),
        Case("three jobs, one training node", partial(workload, "micro-rollout-heavy"), _POLICIES),
        Case("a 32B job and two 8B jobs", partial(workload, "micro-spatial"), _POLICIES),
        Case("production, equal work", partial(workload, "production"), _POLICIES),
    ),
    columns=(SAVING_PER_WORK, SLOWDOWN, SLO_KEPT, ROLLOUT_BUSY, TRAINING_BUSY),
    differences=(
        "We have no values of the paper's figure. The cases are ours, the smallest that show what it is about.",
        "naive has rollmux's groups, and lets every phase run as soon as its job is ready: phases that meet on a node share it "
        "evenly. What two phases at once cost in memory, caches and switches is not counted, so this is its best case.",
    ),
    seeds=3,
)
