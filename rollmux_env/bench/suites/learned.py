"""`learned`: trained policies beside Algorithm 1, `consolidate`, an untrained network, and the exact optimum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rollmux_env.bench.columns import MIGRATIONS, OVER_OPTIMUM, SAVING, SAVING_PER_WORK, SLO_KEPT, WORK_OVER_OPTIMUM
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Column, Suite

_POLICIES = (
    "solo",
    "rollmux",
    "rollmux,prune=false",
    "learned:default,moves=false",
    "consolidate",
    "learned:default",
    "learned:random,tries=1",
)
TIGHT, LOOSE = (1.0, 1.5), (1.5, 3.0)


def _over(policy: str, what: Column) -> Column:
    """Saving relative to another policy than Solo-D, per seed; above 1 it costs less."""
    return replace(what, heading=f"{what.heading}, {policy} = 1", against=(policy,), digits=3)


SUITE = Suite(
    name="learned",
    title="Learned placement policies on streams that training never saw",
    source="not in the paper",
    cases=(
        Case("production, fixed stays", partial(workload, "production", stays="fixed"), (*_POLICIES, "optimal")),
        Case("production, equal work", partial(workload, "production"), (*_POLICIES, "optimal-work")),
        Case("production, tight SLOs", partial(workload, "production", slo=TIGHT), (*_POLICIES, "optimal-work")),
        Case("production, loose SLOs", partial(workload, "production", slo=LOOSE), _POLICIES),
        Case("mixed, fixed stays", partial(workload, "mixed", stays="fixed"), (*_POLICIES, "optimal")),
        Case("mixed, equal work", partial(workload, "mixed"), (*_POLICIES, "optimal-work")),
        Case("mixed, tight SLOs", partial(workload, "mixed", slo=TIGHT), (*_POLICIES, "optimal-work")),
    ),
    columns=(
        SAVING,
        SAVING_PER_WORK,
        *(_over(policy, SAVING_PER_WORK) for policy in ("rollmux", "rollmux,prune=false", "consolidate")),
        _over("consolidate", SAVING),
        OVER_OPTIMUM,
        WORK_OVER_OPTIMUM,
        SLO_KEPT,
        MIGRATIONS,
    ),
    seeds=10,
)
