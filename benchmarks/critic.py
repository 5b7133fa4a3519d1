"""Whether the critic of `maskable-ppo` learns more from other rewards, or with a separate network.

python benchmarks/critic.py

Rewards are dollars over those of a reference, about 1e-4 a decision. The variants are the algorithm as it is, rewards times 100,
rewards over the standard deviation of their discounted sums so far (as `VecNormalize` of Stable-Baselines3 computes it), a critic
that shares no layer with the actor, and both of the last two. All are trained from random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from sb3_contrib import MaskablePPO
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor
from torch.optim import Adam

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.report.tables import show
from trainers.config import MaskablePPOConfig, read_config
from trainers.maskable_ppo import ppo_settings
from trainers.pointer import PointerPolicy, score, scorer_for
from trainers.problem import Problem
from trainers.runs import run_all
from trainers.vec_env import NativeVecEnv

SETTINGS = ("algorithm=maskable-ppo", "streams=64", "environment.options.jobs=60", 'evaluation.references=["first-fit"]')
PPO = 'ppo={"learning_rate": 0.0003, "linear": true, "batch_size": 1024, "n_epochs": 4, "ent_coef": 0.003}'
DISCOUNT = 0.99  # of the sums whose spread scales rewards


class ScaledVecEnv(NativeVecEnv):
    """Rewards times a constant, or over the standard deviation of their discounted sums so far.

    Returns of episodes stay as they are.

    Args:
        env: The environment.
        factor: The constant, or None to divide by the standard deviation.
    """

    def __init__(self, env: Any, factor: float | None) -> None:
        super().__init__(env)
        self._factor = factor
        self._sums, self._spread = np.zeros(env.num_envs), RunningMeanStd(shape=())

    def step_wait(self) -> tuple[Any, Any, Any, Any]:
        """Carry out the actions of `step_async`, and scale the rewards."""
        observation, rewards, dones, infos = super().step_wait()
        if self._factor is not None:
            return observation, rewards * np.float32(self._factor), dones, infos
        self._sums = DISCOUNT * self._sums + rewards
        self._spread.update(self._sums)
        self._sums[dones] = 0.0
        return observation, (rewards / np.sqrt(self._spread.var + 1e-12)).astype(np.float32), dones, infos


class OwnCritic(PointerPolicy):
    """An actor and a critic that share no layer."""

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.critic = scorer_for(self.observation_space, self.widths)
        self.optimizer = Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _score(self, obs: Any) -> tuple[Tensor, Tensor]:
        mask = obs["mask"] > 0
        return score(self.scorer, obs, mask)[0], score(self.critic, obs, mask)[1]


class Explained:
    """A logger that keeps the share of the returns' variance that the critic explains.

    Attributes:
        shares: The share in each update.
    """

    def __init__(self) -> None:
        self.shares: list[float] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Keep the share of an update."""
        if "train/explained_variance" in key_values:
            self.shares.append(float(key_values["train/explained_variance"]))

    def close(self) -> None:
        """Keep what there is."""


def learner(factor: float | None, network: type[PointerPolicy]) -> Callable[[MaskablePPOConfig, Problem, int], MaskablePPO]:
    """Return a function that creates an untrained masked PPO with scaled rewards and one of the networks."""

    def make(config: MaskablePPOConfig, problem: Problem, seed: int) -> MaskablePPO:
        env = ScaledVecEnv(problem.environment(config.streams), factor)
        return MaskablePPO(network, env, **ppo_settings(config), policy_kwargs={"widths": config.widths}, seed=seed, device="cpu")

    return make


VARIANTS = {
    "as it is": learner(1.0, PointerPolicy),
    "rewards times 100": learner(100.0, PointerPolicy),
    "normalised rewards": learner(None, PointerPolicy),
    "critic of its own": learner(1.0, OwnCritic),
    "both": learner(None, OwnCritic),
}


def main() -> None:
    """Train each variant, and print how it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="production", help="what to train (default: %(default)s)")
    parser.add_argument("--decisions", type=int, default=163_840, help="of each training (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of trainings of each variant (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/critic"), help="a folder (default: %(default)s)")
    arguments = parser.parse_args()
    changes = [*SETTINGS, PPO, f"steps={arguments.decisions}", f"evaluation.every={arguments.decisions}", "evaluation.seeds=40"]
    config = read_config(arguments.preset, changes)
    table = Table("variant", "dollars over first fit", "explained variance, last half", title=arguments.preset)
    for name, make in VARIANTS.items():
        logs: list[Explained] = []

        def log(folder: Path, logs: list[Explained] = logs) -> Explained:
            logs.append(Explained())
            return logs[-1]

        curves = run_all(config, arguments.preset, arguments.seeds, arguments.out / name, False, make, log)
        dollars = mean_interval([curve[-1]["dollars_over_first-fit"] for curve in curves.values()])
        explained = mean_interval([float(np.mean(one.shares[len(one.shares) // 2 :])) for one in logs])
        table.add_row(name, dollars.text(4), explained.text(2))
    show(table)


if __name__ == "__main__":
    main()
