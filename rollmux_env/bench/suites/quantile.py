"""`quantile`: planning on a quantile of the phase durations instead of the worst case: dollars against observed SLO attainment."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import COST, SAVING, SAVING_PER_WORK, SLO_OBSERVED
from rollmux_env.bench.streams import sampled
from rollmux_env.bench.suite import Case, Suite

_QUANTILES = (0.5, 0.7, 0.8, 0.9, 0.95)
_PLANNERS = ("rollmux", "rollmux,prune=false")

SUITE = Suite(
    name="quantile",
    title="Planning on a quantile: phases of mean 0.6 of the worst case, coefficient of variation 0.25",
    source="beyond the paper, which plans on the worst case (section 4)",
    cases=(
        Case(
            "sampled phases",
            partial(sampled, "production"),
            ("solo", *(policy for planner in _PLANNERS for policy in (*(f"{planner},quantile={q}" for q in _QUANTILES), planner))),
            dispatch="round-robin",
        ),
    ),
    columns=(COST, SAVING, SAVING_PER_WORK, SLO_OBSERVED),
    differences=(
        "Observed SLOs are against a solo run with the same durations: harder than against the worst case that is planned.",
    ),
    frontier=(COST.heading, SLO_OBSERVED.heading),
    varied="quantile",
    seeds=3,
)
