"""Seconds and preemptions of rollouts whose KV cache is short, by the size of replicas, and with RollPacker's parallelism planner.

    python benchmarks/parallelism_planner.py

The job is that of RollPacker's Figure 6: an 8B model with responses of up to 32k tokens on 8 H800, with tail batching. Its lengths
are not printed; they are those that this project assumes for 8B jobs. Nothing is fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.rollout import make_rollout
from rollmux_env.bench.suites.rollout import setting
from rollmux_env.published import source
from rollmux_env.rollout.job import JobRollouts, RolloutOutcome
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.workloads.modelled import THINKING_MEDIAN, THINKING_SIGMA

SEEDS, ROLLOUTS = 3, 10
SIZES = (1, 2, 4, 8)


class PublishedRounds(NamedTuple):
    """Figures of short and long rounds on replicas of one size."""

    short_s: float
    long_s: float
    short_preemptions: float
    long_preemptions: float


PAPER = dict(source("rollpacker").table("preemptions", PublishedRounds))


def rollouts_of(policy: str, parallel: int, seed: int) -> list[RolloutOutcome]:
    """Return the first rollouts of the job under a policy.

    Args:
        policy: Rollout policy.
        parallel: Number of GPUs of each replica at the beginning.
        seed: Seed of the lengths.
    """
    where = setting("8B", "H800", 8, parallel, Lognormal(32768, THINKING_MEDIAN, THINKING_SIGMA))
    job = JobRollouts(where, make_rollout(policy), seed)
    return [job.next() for _ in range(ROLLOUTS)]


def main() -> None:
    """Print the table."""
    heads = ("mean, s", "over TP 1", "short, s", "paper", "long, s", "paper", "preemptions, short", "paper", "long", "paper")
    table = Table("replicas", *heads)
    base = np.zeros(0)
    for policy, sizes in (("tail-batching", SIZES), ("tail-batching+parallelism-planner", SIZES[:2])):
        for size in sizes:
            runs = [rollouts_of(policy, size, seed) for seed in range(SEEDS)]
            means = np.array([np.mean([one.seconds for one in run]) for run in runs])
            base = base if base.size else means
            gains = base / means
            cells = [f"{means.mean():.0f}", f"{gains.mean():.2f}x ± {gains.std(ddof=1):.2f}"]
            papers = PAPER.get(str(size)) if policy == "tail-batching" else None
            for part in ("seconds", "preemptions"):
                for long in (False, True):
                    values = [getattr(one, part) for run in runs for one in run if one.long == long]
                    kind = f"{'long' if long else 'short'}_{'s' if part == 'seconds' else part}"
                    cells += [f"{np.mean(values):.0f}", f"{getattr(papers, kind):.0f}" if papers else ""]
            table.add_row(f"TP {size}" if policy == "tail-batching" else f"planner from TP {size}", *cells)
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
