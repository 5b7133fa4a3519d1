"""RollMux's phases (arXiv 2512.11306), read off its vector figures, and RollPacker's rollouts (arXiv 2509.21009).

Where the papers leave values open, one assumption holds for all rows: 256 responses to prompts of 1,024 tokens (the 256 are from
RollMux's Table 3); for 3B, 14B-4k and 32B jobs, the lengths of the 7B job with the same cap. 4B and 8B jobs, whose lengths are not
published, have a lognormal of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from rollmux_env.bench.tables.table import Row, published_table
from rollmux_env.published import source
from rollmux_env.timing.lengths import PUBLISHED, Lengths, Lognormal, Piecewise
from rollmux_env.timing.rl_job import Batch, RlJob, Workers
from rollmux_env.workloads.catalogue import PHASES_S

RESPONSES, PROMPT_TOKENS = 256, 1024
GROUP = 8  # responses of each of the 256 prompts: assumed; with one, training would reach 4% of the peak
THINKING_MEDIAN, THINKING_SIGMA = 4096.0, 1.2  # of 4B and 8B jobs: assumed
TENSOR_PARALLEL = {"32B": 2, "70B": 8}
GPUS_OF = {"32B": 16}  # of each pool; 8 else


def job_lengths(kind: str) -> Lengths:
    """Lengths of a job type such as `8B-16k`: published, or assumed as said above."""
    size, _, cap = kind.partition("-")
    if kind in PUBLISHED:
        return PUBLISHED[kind]
    if size in ("4B", "8B"):
        return Lognormal(1024 * int(cap.removesuffix("k")), THINKING_MEDIAN, THINKING_SIGMA)
    return PUBLISHED[f"7B-{cap}"]


def _phases() -> Iterator[Row]:
    for kind, (rollout_s, training_s, together_s, trained_s) in PHASES_S.items():
        size = kind.partition("-")[0]
        gpus, parallel = GPUS_OF.get(size, 8), TENSOR_PARALLEL.get(size, 1)
        batch = Batch(RESPONSES, GROUP, 1, PROMPT_TOKENS, job_lengths(kind))
        jobs = [RlJob(size, Workers(gpu, gpus, parallel), Workers("H800", gpus), batch) for gpu in ("H20", "H800")]
        apart, together = [(job, replace(job, batch=replace(batch, responses=1))) for job in jobs]
        yield Row(f"{kind} apart, rollout", "H20", {"gen": rollout_s}, *apart)
        yield Row(f"{kind} apart, training", "H800", {"training": training_s}, *apart)
        yield Row(f"{kind} co-located", "H800", {"gen": together_s, "training": trained_s}, *together)


ROLLMUX = published_table("rollmux", _phases())


def packed_lengths(cap: int) -> Piecewise:
    """RollPacker's lengths up to a cap: median 500 to 700, 90% at most 1.3k to 2.3k, 95 to 98% below 4k, 2 to 5% at the cap."""
    return Piecewise(cap, ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, float(cap))))


class PackedJob(NamedTuple):
    """A job of RollPacker's: its model, longest response, H800s, of them a replica, seconds of rollouts, plain and batched."""

    size: str
    cap: int
    gpus: int
    parallel: int
    plain_s: float
    batched_s: float


PACKED_JOBS = dict(source("rollpacker").table("rollouts", PackedJob))


def _packed() -> Iterator[Row]:
    for name, packed in PACKED_JOBS.items():
        batch = Batch(128, 8, 1, PROMPT_TOKENS, packed_lengths(packed.cap))
        job = RlJob(packed.size, Workers("H800", packed.gpus, packed.parallel), Workers("H800", packed.gpus), batch)
        yield Row(f"{name} rollout, {packed.gpus} GPUs", "H800", {"gen": packed.plain_s}, job)


ROLLPACKER = published_table("rollpacker", _packed())
