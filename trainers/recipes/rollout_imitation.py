"""Imitation of a published rollout policy in `RollMux/Rollout-v0`, as a start for masked PPO.

    python -m trainers.recipes.rollout_imitation tail-batching+tail-migration --out FILE

From scratch, PPO only learns to keep everything as it is, because most other actions are bad while the rest of a rollout is played
at random. Here the teacher plays jobs with some exploration, so that its choices are also known in states that it would not reach.
The network is fitted to these choices by cross-entropy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from policies.placement.policy_file import write_policy
from policies.rollout.environment import PolicyAgent
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import RandomJobs
from rollmux_env.envs.rollout.observation import JOB_FEATURES, ROW_FEATURES, STATE_FEATURES
from rollmux_env.portable import FIRST_DRAWN_SEED
from trainers.network import Scorer
from trainers.problem import RolloutProblem
from trainers.recipes.imitation import Labels, fit, joined

JOBS, EXPLORATION, EPOCHS, LEARNING_RATE, WIDTHS = 300, 0.1, 10, 2e-3, (48, 48)


def collect(teacher: str, jobs: int, seed: int) -> Labels:
    """Play jobs, and label every decision with the teacher's choice: its row has the value 1, the others 0."""
    rng = np.random.default_rng(seed)
    env = RolloutVectorEnv(jobs, RandomJobs(), autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": rng.integers(FIRST_DRAWN_SEED, 2**31, jobs).tolist()})
    agent, over, parts = PolicyAgent(teacher, env), np.zeros(jobs, np.bool_), list[Labels]()
    while not over.all():
        actions, mask = agent.actions(observation), observation["mask"]
        actions = np.where(mask[np.arange(jobs), actions] == 1, actions, 0)
        values = np.where(mask > 0, 0.0, np.nan).astype(np.float32)
        values[np.arange(jobs), actions] = 1.0
        known = np.flatnonzero(~over & (mask.sum(1) > 1))
        job, rows, cluster = (observation[name][known] for name in ("job", "candidates", "cluster"))
        parts.append(Labels(job, rows, cluster, mask[known], values[known]))
        explored = (rng.random((jobs, len(mask[0]))) * mask).argmax(1)
        observation, _, ended, _, _ = env.step(np.where(rng.random(jobs) < EXPLORATION, explored, actions))
        over |= ended
    return joined(parts)


def main() -> None:
    """Train a network to imitate the teacher named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="a rollout policy")
    parser.add_argument("--out", type=Path, required=True, help="the policy file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    labels = collect(arguments.teacher, JOBS, arguments.seed)
    network = Scorer(len(JOB_FEATURES), len(ROW_FEATURES), len(STATE_FEATURES), WIDTHS)
    loss = fit(network, labels, EPOCHS, LEARNING_RATE, arguments.seed, choose=True)
    command = f"python -m trainers.recipes.rollout_imitation {arguments.teacher} --seed {arguments.seed}"
    config = RolloutProblem().policy_config(WIDTHS, {"command": command, "labels": len(labels.values)})
    write_policy(arguments.out, config, network.weights())
    print(f"{len(labels.values)} labels, cross-entropy {loss:.3f}")


if __name__ == "__main__":
    main()
