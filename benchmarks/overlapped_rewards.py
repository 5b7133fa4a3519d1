"""Time from the beginning of a rollout to its last reward, if rewards are computed after the rollout or during it, in seconds.

    python benchmarks/overlapped_rewards.py

The jobs are RollPacker's 7B-8k on 16 H800, in the simulator. Responses have the published lengths. A reward takes 2 s, on a given
number of reward nodes.
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
    """Return the mean times of a job's rollouts: without rewards, with rewards after it, and with rewards during it, in seconds.

    Args:
        policy: Name of the rollout policy.
        nodes: Number of reward nodes.
        seed: Seed of the job's rollouts.
    """
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
