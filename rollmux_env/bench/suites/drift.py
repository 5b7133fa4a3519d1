"""`drift`: phase durations change while jobs run; static placement against hourly regrouping (paper, section 6.6, Figure 17).

In every case but the first, each job draws its drift from the paper's templates: none, 0.5x, 1.0x or 1.5x.
"""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import COST, MIGRATIONS, OVER_REGROUP, ROLLOUT_BUSY, SLO_KEPT, SLO_OBSERVED, TRAINING_BUSY
from rollmux_env.bench.streams import drifting
from rollmux_env.bench.suite import Case, Suite

_PAPER = {"increasing": (1.11, 98.6), "decreasing": (1.10, 98.7), "mixed": (1.08, 95.6)}
_POLICIES = ("solo", "random", "most-idle", "rollmux", "regroup")

SUITE = Suite(
    name="drift",
    title="Drifting phases: production jobs, event replay",
    source="section 6.6, Figure 17",
    cases=tuple(
        Case(template, partial(drifting, "production", template), _POLICIES, dispatch="round-robin")
        for template in ("none", *_PAPER)
    ),
    columns=(COST, OVER_REGROUP, SLO_KEPT, SLO_OBSERVED, ROLLOUT_BUSY, TRAINING_BUSY, MIGRATIONS),
    paper={
        (template, "rollmux", heading): value
        for template, values in _PAPER.items()
        for heading, value in zip((OVER_REGROUP.heading, SLO_OBSERVED.heading), values, strict=True)
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
