"""Suites of placement policies beyond the paper's own: failures, quantiles, promises, learning, asynchronous jobs, other nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from rollmux_env.bench import columns
from rollmux_env.bench.streams import asynchronous, sampled, workload
from rollmux_env.bench.suite import Case, Column, Suite
from rollmux_env.replay.failures import Failures
from rollmux_env.workloads.draws import SYNC_SHARE

# How far apart checkpoints are, in iterations; 6.5 failures in 1,000 days of a node of 8 GPUs (RSC-1, arXiv 2410.21680). The other
# rates and the 60 s are ours.
Every = int | Literal["young", "daly"]
_EVERY: tuple[Every, ...] = (1, 2, 4, 8, 16, 32, 64, "young", "daly")
NOTHING = "nothing dies or is written"
NODE_H = 24 * 1000 / 6.5


def _deadly(label: str, failures: Failures) -> Case:
    stream = partial(workload, "production", switches=True)
    return Case(label, stream, ("solo", "rollmux", "consolidate"), "round-robin", failures)


def _checkpoints(every: Every) -> Case:
    label = f"every {every}" if isinstance(every, int) else f"by {every.capitalize()}'s formula"
    failures = Failures(node_h=NODE_H, job_h=24.0, scheduler_h=168.0, scheduler_down_s=600.0, every=every, write_s=60.0)
    return _deadly("every iteration" if every == 1 else label, failures)


_FAILURES = Suite(
    name="failures",
    title="Failures: production jobs, event replay, by the iterations from one checkpoint to the next",
    source="section 5.3 of the paper; Figure 19 of Weave",
    cases=(_deadly(NOTHING, Failures()), *map(_checkpoints, _EVERY)),
    columns=(
        *(columns.EVERY, columns.RESTARTS, columns.LOST_WORK, columns.LOST_SHARE, columns.CHECKPOINT_H),
        *(columns.WORK_COST, columns.SLO_OBSERVED),
    ),
    differences=(
        "The values of Weave's Figure 19 are not known to us, so none stand beside ours.",
        "A job dies once in 24 h, a node once in 3,692 h (measured on Meta's RSC-1), the scheduler once a week, for 10 min. A job "
        "waits 60 s for each checkpoint; one that has died begins again 300 s later, with cold starts.",
        "Young's and Daly's formulas know nothing of groups: there, a job that writes or is away may only fill a bubble.",
    ),
    least=columns.WORK_COST.heading,
    seeds=3,
)

_QUANTILE = Suite(
    name="quantile",
    title="Planning on a quantile: phases of mean 0.6 of the worst case, coefficient of variation 0.25",
    source="beyond the paper, which plans on the worst case (section 4)",
    cases=(
        Case(
            "sampled phases",
            partial(sampled, "production"),
            (
                "solo",
                *(
                    f"{planner}{option}"
                    for planner in ("rollmux", "rollmux,prune=false")
                    for option in (*(f",quantile={q}" for q in (0.5, 0.7, 0.8, 0.9, 0.95)), "")
                ),
            ),
            dispatch="round-robin",
        ),
    ),
    columns=(columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.SLO_OBSERVED),
    differences=(
        "Observed SLOs are against a solo run with the same durations: harder than against the worst case that is planned.",
    ),
    frontier=(columns.COST.heading, columns.SLO_OBSERVED.heading),
    varied="quantile",
    seeds=3,
)

_PROMISES = Suite(
    name="promises",
    title="Promised and observed: production jobs at worst-case durations, every phase with its switch",
    source="beyond the paper, which leaves switches out of its plans (section 4)",
    cases=tuple(
        Case(
            label,
            partial(workload, "production", stays=stays, switches=True),
            (
                "solo",
                *(f"{name}{option}" for name in ("rollmux", "consolidate", "learned:default") for option in ("", ",switches=true")),
            ),
            "round-robin",
        )
        for label, stays in (("equal work", "iterations"), ("fixed stays", "fixed"))
    ),
    columns=(columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.SLO_OBSERVED, columns.MIGRATIONS),
    differences=(
        "Observed SLOs are against a run alone, which begins with cold starts too.",
        "Without switches=true the plans keep every SLO as the fluid replay counts it: switches and the wait for a meta-iteration "
        "take no time there.",
    ),
    seeds=3,
)

# Trained policies beside Algorithm 1, `consolidate`, an untrained network, and the exact optimum.
_TAUGHT = (
    *("solo", "rollmux", "rollmux,prune=false", "learned:default,moves=false"),
    *("consolidate", "learned:default", "learned:random,tries=1"),
)
TIGHT, LOOSE = (1.0, 1.5), (1.5, 3.0)


def _over(policy: str, what: Column) -> Column:
    """Saving relative to another policy than Solo-D, per seed; above 1 it costs less."""
    return replace(what, heading=f"{what.heading}, {policy} = 1", against=(policy,), digits=3)


_LEARNED = Suite(
    name="learned",
    title="Learned placement policies on streams that training never saw",
    source="not in the paper",
    cases=(
        Case("production, fixed stays", partial(workload, "production", stays="fixed"), (*_TAUGHT, "optimal")),
        Case("production, equal work", partial(workload, "production"), (*_TAUGHT, "optimal-work")),
        Case("production, tight SLOs", partial(workload, "production", slo=TIGHT), (*_TAUGHT, "optimal-work")),
        Case("production, loose SLOs", partial(workload, "production", slo=LOOSE), _TAUGHT),
        Case("mixed, fixed stays", partial(workload, "mixed", stays="fixed"), (*_TAUGHT, "optimal")),
        Case("mixed, equal work", partial(workload, "mixed"), (*_TAUGHT, "optimal-work")),
        Case("mixed, tight SLOs", partial(workload, "mixed", slo=TIGHT), (*_TAUGHT, "optimal-work")),
    ),
    columns=(
        *(columns.SAVING, columns.SAVING_PER_WORK),
        *(_over(policy, columns.SAVING_PER_WORK) for policy in ("rollmux", "rollmux,prune=false", "consolidate")),
        *(_over("consolidate", columns.SAVING), columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM),
        *(columns.SLO_KEPT, columns.MIGRATIONS),
    ),
    seeds=10,
)

_ASYNCHRONY = Suite(
    name="asynchrony",
    title="Asynchronous jobs: what sharing nodes still saves",
    source="beyond the paper",
    cases=tuple(
        Case(
            f"{profile}, staleness {versions}",
            partial(asynchronous, profile, versions, jobs=100),
            ("solo", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work"),
        )
        for profile in ("balanced", "rollout-heavy", "train-heavy")
        for versions in (0, 1, 2, 4, 8)
    ),
    columns=(columns.COST, columns.SAVING_PER_WORK, columns.WORK_OVER_OPTIMUM, columns.SLO_KEPT),
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

_SHAPES = Suite(
    name="shapes",
    title="Shapes: what choosing the nodes of each job saves",
    source="beyond the paper",
    cases=tuple(
        Case(
            label,
            partial(workload, "production", jobs=30, shapes=shapes),
            ("solo", "gavel", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work"),
        )
        for label, shapes in (("as written", False), ("with shapes", True))
    ),
    columns=(columns.COST, columns.SAVING_PER_WORK, columns.WORK_OVER_OPTIMUM, columns.SLO_KEPT),
    differences=(
        "Jobs, stays and SLOs are the same in both cases, and T_solo is that of the job as it is written: dollars compare across "
        "them.",
        "A shape has half or twice the nodes of a phase, and a part of the phase does not scale: a quarter of a rollout, 15% of a "
        "training. So a job in another shape than its own mostly costs more by itself; what is saved is saved in groups.",
        "solo and gavel have no use for shapes: a job of its own, or a round on nodes for it, has those that it asks for.",
    ),
    seeds=3,
)

SUITES = (_FAILURES, _QUANTILE, _PROMISES, _LEARNED, _ASYNCHRONY, _SHAPES)
