"""Time from the beginning of a rollout to its last reward, if rewards are computed after the rollout or during it, in seconds.

    python benchmarks/overlapped_rewards.py

The jobs are RollPacker's 7B-8k on 16 H800, in the simulator. Responses have the published lengths. All rewards take 2 s, or they
take what RollPacker prints of tests of code: 93% of them 1 s, and 5% its limit of 30 s. They have a given number of reward nodes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

from policies.rollout import make_rollout
from rollmux_env.bench.suites.rollout import ROLLOUTS, setting
from rollmux_env.fidelity.step import RewardLaw
from rollmux_env.published import source
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.timing.lengths import PUBLISHED
from rollmux_env.timing.rewards import RewardQuantiles, mean_reward_s, reward_seconds, varied_reward_ends

POLICIES = ("plain", "tail-batching", "tail-batching+tail-migration", "tail-migration", "adaptive-parallelism")
TESTS = source("rollpacker").value("rewards", RewardLaw).points
REWARDS: dict[str, RewardQuantiles] = {"2 s": ((1.0, 2.0),), "1 s to 30 s": (*TESTS, (1.0, TESTS[-1][1]))}
NODES, SEEDS = (16, 64, 256), 3


def seconds(policy: str, rewards: RewardQuantiles, nodes: int, seed: int) -> tuple[float, float, float]:
    """Return the mean times of a job's rollouts: without rewards, with rewards after it, and with rewards during it, in seconds.

    Args:
        policy: Name of the rollout policy.
        rewards: Distribution of the seconds of a reward.
        nodes: Number of reward nodes.
        seed: Seed of the job's rollouts.
    """
    alone = setting("7B", "H800", 16, 1, PUBLISHED["7B-8k"])
    where = replace(alone, reward_s=mean_reward_s(rewards), reward_nodes=nodes, reward_quantiles=rewards)
    job, draws, rollouts = JobRollouts(where, make_rollout(policy), seed), np.random.default_rng(seed), []
    for _ in range(ROLLOUTS):
        one = job.next()
        runs_s = reward_seconds(rewards, draws.random(int(one.counts.sum())))
        after_s = float(varied_reward_ends(np.full(runs_s.size, one.seconds), runs_s, nodes).max())
        rollouts.append((one.seconds, after_s, one.rewarded_s))
    alone_s, after_s, beside_s = np.mean(rollouts, axis=0).tolist()
    return alone_s, after_s, beside_s


def main() -> None:
    """Print the table."""
    table = Table("policy", "a reward", "nodes", "rollout, s", "rewards after, s", "rewards beside, s", "gain")
    for policy, (label, rewards), nodes in product(POLICIES, REWARDS.items(), NODES):
        runs = np.array([seconds(policy, rewards, nodes, seed) for seed in range(SEEDS)])
        cells = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in zip(runs.mean(axis=0), runs.std(axis=0, ddof=1), strict=True)]
        gains = runs[:, 1] / runs[:, 2]
        table.add_row(policy, label, str(nodes), *cells, f"{gains.mean():.2f}x ± {gains.std(ddof=1):.2f}")
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
