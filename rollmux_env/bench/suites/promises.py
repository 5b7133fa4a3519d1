"""`promises`: SLOs in an event replay at worst-case durations with switches, planned with and without them."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import COST, MIGRATIONS, SAVING, SAVING_PER_WORK, SLO_OBSERVED
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Suite

_PLANNERS = ("rollmux", "consolidate", "learned:default")
_POLICIES = ("solo", *(f"{planner}{option}" for planner in _PLANNERS for option in ("", ",switches=true")))

SUITE = Suite(
    name="promises",
    title="Promised and observed: production jobs at worst-case durations, every phase with its switch",
    source="beyond the paper, which leaves switches out of its plans (section 4)",
    cases=tuple(
        Case(label, partial(workload, "production", stays=stays, switches=True), _POLICIES, "round-robin")
        for label, stays in (("equal work", "iterations"), ("fixed stays", "fixed"))
    ),
    columns=(COST, SAVING, SAVING_PER_WORK, SLO_OBSERVED, MIGRATIONS),
    differences=(
        "Observed SLOs are against a run alone, which begins with cold starts too.",
        "Without switches=true the plans keep every SLO as the fluid replay counts it: switches and the wait for a meta-iteration "
        "take no time there.",
    ),
    seeds=3,
)
