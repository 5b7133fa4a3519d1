"""Prints seconds from the beginning of a rollout to its last reward, with rewards after the rollout and beside it.

    python benchmarks/overlapped_rewards.py

Jobs are those of RollPacker's 7B-8k on 16 H800, in the simulator: responses as long as published, rewards of 2 s on so many nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.rollout import make_rollout
from rollmux_env.bench.suites.rollout import ROLLOUTS, setting
from rollmux_env.kernel.rollout_rounds import reward_ends
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.timing.lengths import PUBLISHED

POLICIES = ("plain", "tail-batching", "tail-batching+tail-migration", "tail-migration", "adaptive-parallelism")
REWARD_S, NODES, SEEDS = 2.0, (16, 64, 256), 3


def seconds(policy: str, nodes: int, seed: int) -> tuple[float, float, float]:
    """Means of a job's rollouts: the rollout alone, with rewards after it, and with rewards beside it."""
    where = replace(setting("7B", "H800", 16, 1, PUBLISHED["7B-8k"]), reward_s=REWARD_S, reward_nodes=nodes)
    job, rollouts = JobRollouts(where, make_rollout(policy), seed), []
    for _ in range(ROLLOUTS):
        one = job.next()
        after_s = float(reward_ends(np.full(int(one.counts.sum()), one.seconds), REWARD_S, nodes)[-1])
        rollouts.append((one.seconds, after_s, one.rewarded_s))
    alone_s, after_s, beside_s = np.mean(rollouts, axis=0).tolist()
    return alone_s, after_s, beside_s


def main() -> None:
    """Print the table."""
    table = Table("policy", "reward nodes", "rollout, s", "rewards after, s", "rewards beside, s", "gain")
    for policy in POLICIES:
        for nodes in NODES:
            runs = np.array([seconds(policy, nodes, seed) for seed in range(SEEDS)])
            cells = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in zip(runs.mean(axis=0), runs.std(axis=0, ddof=1), strict=True)]
            gains = runs[:, 1] / runs[:, 2]
            table.add_row(policy, str(nodes), *cells, f"{gains.mean():.2f}x ± {gains.std(ddof=1):.2f}")
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
