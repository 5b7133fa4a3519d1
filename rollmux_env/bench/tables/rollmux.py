"""RollMux's phases (arXiv 2512.11306), read off its vector figures, and RollPacker's rollouts (arXiv 2509.21009)."""

from __future__ import annotations

from dataclasses import replace

from rollmux_env.bench.tables.table import NotCovered, Row, Table
from rollmux_env.timing.published import GPUS_OF, PACKED_JOBS, PROMPT_TOKENS, TENSOR_PARALLEL, job_batch, packed_lengths
from rollmux_env.timing.rl_job import Batch, RlJob, Workers
from rollmux_env.workloads.catalogue import PHASES_S

GROUP = 8  # responses of each of the 256 prompts: assumed; with one, training would reach 4% of the peak


def _phases() -> tuple[Row, ...]:
    rows = []
    for kind, (rollout_s, training_s, together_s, trained_s) in PHASES_S.items():
        size = kind.partition("-")[0]
        gpus, parallel = GPUS_OF.get(size, 8), TENSOR_PARALLEL.get(size, 1)
        h20, h800, trainer = Workers("H20", gpus, parallel), Workers("H800", gpus, parallel), Workers("H800", gpus)
        jobs = [RlJob(size, rollout, trainer, job_batch(kind, GROUP)) for rollout in (h20, h800)]
        apart, together = [(job, replace(job, batch=job_batch(kind))) for job in jobs]
        rows += [
            Row(f"{kind} apart, rollout", "H20", {"gen": rollout_s}, *apart),
            Row(f"{kind} apart, training", "H800", {"training": training_s}, *apart),
            Row(f"{kind} co-located", "H800", {"gen": together_s, "training": trained_s}, *together),
        ]
    return tuple(rows)


ROLLMUX = Table(
    "RollMux",
    "arXiv 2512.11306, phase times, read off vector figures to 1 to 3%",
    _phases(),
    (NotCovered(12, "syncs between clusters", "fitted with the scenario model: see docs/results/timing.md"),),
    ("256 prompts with 8 responses each (with one, training would reach 4% of the peak); the scenario model took one.",),
)


def _packed() -> tuple[Row, ...]:
    rows = []
    for size, cap, gpus, parallel, seconds in PACKED_JOBS:
        batch = Batch(128, 8, 1, PROMPT_TOKENS, packed_lengths(cap))
        job = RlJob(size, Workers("H800", gpus, parallel), Workers("H800", gpus), batch)
        rows.append(Row(f"{size}-{cap // 1024}k rollout, {gpus} GPUs", "H800", {"gen": seconds}, job))
    return tuple(rows)


ROLLPACKER = Table(
    "RollPacker",
    "arXiv 2509.21009, seconds of plain rollouts",
    _packed(),
    (
        NotCovered(3, "rollouts with tail batching", "they are the suite `rollout`'s"),
        NotCovered(12, "speed-ups of whole steps", "ratios; seconds of the steps are not printed"),
    ),
)
