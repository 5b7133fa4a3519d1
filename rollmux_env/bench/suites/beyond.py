"""Suites of placement policies beyond the paper's own: failures, quantiles, promises, learning, asynchronous jobs, other nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from rollmux_env.bench import columns
from rollmux_env.bench.streams import asynchronous, sampled, workload
from rollmux_env.bench.suite import Case, Column, published_suite
from rollmux_env.replay.failures import Failures

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


_FAILURES = published_suite(
    "beyond",
    "failures",
    (_deadly(NOTHING, Failures()), *map(_checkpoints, _EVERY)),
    (
        *(columns.EVERY, columns.RESTARTS, columns.LOST_WORK, columns.LOST_SHARE, columns.CHECKPOINT_H),
        *(columns.WORK_COST, columns.SLO_OBSERVED),
    ),
    least=columns.WORK_COST.heading,
    seeds=3,
)

_QUANTILE = published_suite(
    "beyond",
    "quantile",
    (
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
    (columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.SLO_OBSERVED),
    frontier=(columns.COST.heading, columns.SLO_OBSERVED.heading),
    varied="quantile",
    seeds=3,
)

_PROMISES = published_suite(
    "beyond",
    "promises",
    tuple(
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
    (columns.COST, columns.SAVING, columns.SAVING_PER_WORK, columns.SLO_OBSERVED, columns.MIGRATIONS),
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


_LEARNED = published_suite(
    "beyond",
    "learned",
    (
        Case("production, fixed stays", partial(workload, "production", stays="fixed"), (*_TAUGHT, "optimal")),
        Case("production, equal work", partial(workload, "production"), (*_TAUGHT, "optimal-work")),
        Case("production, tight SLOs", partial(workload, "production", slo=TIGHT), (*_TAUGHT, "optimal-work")),
        Case("production, loose SLOs", partial(workload, "production", slo=LOOSE), _TAUGHT),
        Case("mixed, fixed stays", partial(workload, "mixed", stays="fixed"), (*_TAUGHT, "optimal")),
        Case("mixed, equal work", partial(workload, "mixed"), (*_TAUGHT, "optimal-work")),
        Case("mixed, tight SLOs", partial(workload, "mixed", slo=TIGHT), (*_TAUGHT, "optimal-work")),
    ),
    (
        *(columns.SAVING, columns.SAVING_PER_WORK),
        *(_over(policy, columns.SAVING_PER_WORK) for policy in ("rollmux", "rollmux,prune=false", "consolidate")),
        *(_over("consolidate", columns.SAVING), columns.OVER_OPTIMUM, columns.WORK_OVER_OPTIMUM),
        *(columns.SLO_KEPT, columns.MIGRATIONS),
    ),
    seeds=10,
)

_ASYNCHRONY = published_suite(
    "beyond",
    "asynchrony",
    tuple(
        Case(
            f"{profile}, staleness {versions}",
            partial(asynchronous, profile, versions, jobs=100),
            ("solo", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work"),
        )
        for profile in ("balanced", "rollout-heavy", "train-heavy")
        for versions in (0, 1, 2, 4, 8)
    ),
    (columns.COST, columns.SAVING_PER_WORK, columns.WORK_OVER_OPTIMUM, columns.SLO_KEPT),
    seeds=3,
)

_SHAPES = published_suite(
    "beyond",
    "shapes",
    tuple(
        Case(
            label,
            partial(workload, "production", jobs=30, shapes=shapes),
            ("solo", "gavel", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work"),
        )
        for label, shapes in (("as written", False), ("with shapes", True))
    ),
    (columns.COST, columns.SAVING_PER_WORK, columns.WORK_OVER_OPTIMUM, columns.SLO_KEPT),
    seeds=3,
)

SUITES = (_FAILURES, _QUANTILE, _PROMISES, _LEARNED, _ASYNCHRONY, _SHAPES)
