"""`failures`: jobs, nodes and the scheduler die; what checkpoints cost and what they save, by how far apart they are."""

from __future__ import annotations

from functools import partial
from typing import Literal

from rollmux_env.bench.columns import CHECKPOINT_H, EVERY, LOST_SHARE, LOST_WORK, RESTARTS, SLO_OBSERVED, WORK_COST
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Suite
from rollmux_env.replay.failures import Failures

Every = int | Literal["young", "daly"]
NOTHING = "nothing dies or is written"
_POLICIES = ("solo", "rollmux", "consolidate")
_EVERY: tuple[Every, ...] = (1, 2, 4, 8, 16, 32, 64, "young", "daly")

# 6.5 failures in 1,000 days of a node of 8 GPUs (RSC-1, arXiv 2410.21680); the other rates and the 60 s are ours.
NODE_H = 24 * 1000 / 6.5


def _failures(every: Every) -> Failures:
    return Failures(node_h=NODE_H, job_h=24.0, scheduler_h=168.0, scheduler_down_s=600.0, every=every, write_s=60.0)


def _label(every: Every) -> str:
    if every == 1:
        return "every iteration"
    return f"every {every}" if isinstance(every, int) else f"by {every.capitalize()}'s formula"


_STREAM = partial(workload, "production", switches=True)

SUITE = Suite(
    name="failures",
    title="Failures: production jobs, event replay, by the iterations from one checkpoint to the next",
    source="section 5.3 of the paper; Figure 19 of Weave",
    cases=(
        Case(NOTHING, _STREAM, _POLICIES, "round-robin", Failures()),
        *(Case(_label(every), _STREAM, _POLICIES, "round-robin", _failures(every)) for every in _EVERY),
    ),
    columns=(EVERY, RESTARTS, LOST_WORK, LOST_SHARE, CHECKPOINT_H, WORK_COST, SLO_OBSERVED),
    differences=(
        "The values of Weave's Figure 19 are not known to us, so none stand beside ours.",
        "A job dies once in 24 h, a node once in 3,692 h (measured on Meta's RSC-1), the scheduler once a week, for 10 min. A job "
        "waits 60 s for each checkpoint; one that has died begins again 300 s later, with cold starts.",
        "Young's and Daly's formulas know nothing of groups: there, a job that writes or is away may only fill a bubble.",
    ),
    least=WORK_COST.heading,
    seeds=3,
)
