"""`latency`: time of one placement decision, and of the exact optimum, by the number of active jobs (paper, Table 5)."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import DECISION
from rollmux_env.bench.streams import crowd
from rollmux_env.bench.suite import Case, Suite

_PAPER_MS = {5: 5.6, 9: 6.5, 13: 7.6, 100: 41.9, 500: 198.0, 1000: 318.0, 2000: 591.0}
_BRUTE_FORCE_MS = {5: 113.0, 13: 5 * 3600e3}
_EXACT = (5, 9, 13)


def _label(jobs: int) -> str:
    return f"{jobs:,} active jobs"


SUITE = Suite(
    name="latency",
    title="Time of a decision",
    source="Table 5",
    cases=tuple(
        Case(_label(jobs), partial(crowd, jobs), ("rollmux", "optimal") if jobs in _EXACT else ("rollmux",))
        for jobs in (*_PAPER_MS, 20000)
    ),
    columns=(DECISION,),
    paper={
        **{(_label(jobs), "rollmux", DECISION.heading): ms for jobs, ms in _PAPER_MS.items()},
        **{(_label(jobs), "optimal", DECISION.heading): ms for jobs, ms in _BRUTE_FORCE_MS.items()},
    },
    differences=(
        "The paper's times are from its own machine; its optimum is brute force (at 13 jobs: over 5 h), ours set partitioning.",
    ),
    seeds=3,
)
