"""Value of the mask: PPO and DQN that may choose any row, for comparison with `rollmux train`'s masked PPO.

python benchmarks/unmasked.py ppo mixed --set steps=49152 --set evaluation.every=8192 --seeds 3 --out runs/ppo
python benchmarks/unmasked.py dqn mixed --set steps=49152 --set evaluation.every=8192 --seeds 3 --out runs/dqn

The environment does not execute a masked choice. It charges a penalty, which is the only signal to learn from. DQN (Mnih et
al. 2015) estimates the value of every row: it takes the best or, with a decreasing probability, a random one, and minibatches
of past decisions pull the value of a row towards the reward plus the best value of the next decision.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor

from rollmux_env.report.tables import show
from trainers.config import read_config
from trainers.maskable_ppo import ppo_settings
from trainers.network import Scorer
from trainers.pointer import PointerPolicy, score, scorer_for
from trainers.problem import Problem
from trainers.runs import best_table, run_all
from trainers.vec_env import NativeVecEnv

REPLAY = {"buffer_size": 20_000, "learning_starts": 1_000, "batch_size": 256, "train_freq": 4, "gradient_steps": 4}
EXPLORATION = {"exploration_fraction": 0.3, "exploration_final_eps": 0.02}


def score_every_row(scorer: Scorer, obs: Any) -> tuple[Tensor, Tensor]:
    """Return the logits and values of a network that does not see the mask."""
    return score(scorer, obs, torch.ones_like(obs["mask"], dtype=torch.bool))


class UnmaskedPolicy(PointerPolicy):
    """Network of masked PPO, without the mask. SB3's PPO passes `use_sde`, which must be False."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, widths: Any, use_sde: bool = False) -> None:
        super().__init__(observation_space, action_space, lr_schedule, widths)

    def _score(self, obs: Any) -> tuple[Tensor, Tensor]:
        return score_every_row(self.scorer, obs)


class ValueOfRows(QNetwork):
    """Action values of the same network: the value of the decision plus the logit of each row."""

    def __init__(self, observation_space: Any, action_space: Any, widths: Any, **network: Any) -> None:
        super().__init__(observation_space, action_space, **network)
        self.q_net = torch.nn.Sequential()
        self.scorer = scorer_for(observation_space, widths)

    def forward(self, obs: Any) -> Tensor:
        """Return the action values, of shape (B, A)."""
        logits, values = score_every_row(self.scorer, obs)
        return logits + values.unsqueeze(-1)


class ValuePolicy(DQNPolicy):
    """Policy class of DQN for `ValueOfRows`."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, widths: Any) -> None:
        self.widths = tuple(widths)
        super().__init__(observation_space, action_space, lr_schedule)

    def make_q_net(self) -> ValueOfRows:
        """Return a network of action values."""
        extractor = self.make_features_extractor()
        network = {"features_extractor": extractor, "features_dim": extractor.features_dim, "net_arch": []}
        return ValueOfRows(self.observation_space, self.action_space, self.widths, **network).to(self.device)

    @property
    def scorer(self) -> Scorer:
        """Network that is trained."""
        return self.q_net.scorer


class UnmaskedPPO(PPO):
    """PPO that is not told the mask."""

    def predict(self, *args: Any, action_masks: Any = None, **options: Any) -> Any:
        """Choose actions, ignoring the mask."""
        return super().predict(*args, **options)


class UnmaskedDQN(DQN):
    """DQN that is not told the mask."""

    def predict(self, *args: Any, action_masks: Any = None, **options: Any) -> Any:
        """Choose actions, ignoring the mask."""
        return super().predict(*args, **options)


def ppo(config: Any, problem: Problem, seed: int) -> PPO:
    """Return an untrained PPO with the candidate-scoring network."""
    network, env = {"widths": config.widths}, NativeVecEnv(problem.environment(config.streams))
    return UnmaskedPPO(UnmaskedPolicy, env, **ppo_settings(config), policy_kwargs=network, seed=seed, device="cpu")


def dqn(config: Any, problem: Problem, seed: int) -> DQN:
    """Return an untrained DQN with the candidate-scoring network."""
    env = NativeVecEnv(problem.environment(config.streams))
    settings = {"learning_rate": 3e-4, "gamma": 1.0, "target_update_interval": 2_000, **REPLAY, **EXPLORATION}
    network = {"widths": config.widths}
    return UnmaskedDQN(ValuePolicy, env, **settings, policy_kwargs=network, seed=seed, device="cpu")


def main() -> None:
    """Train one of the two, and print the table of its best policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=("ppo", "dqn"))
    parser.add_argument("name", help="a preset or a configuration file, as for `rollmux train`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value; can be repeated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    arguments = parser.parse_args()
    learner = {"ppo": ppo, "dqn": dqn}[arguments.algorithm]
    config = read_config(arguments.name, [*arguments.set, "algorithm=maskable-ppo"])
    curves = run_all(config, arguments.name, arguments.seeds, arguments.out, resume=False, learner=learner)
    show(best_table(arguments.name, arguments.out, curves))


if __name__ == "__main__":
    main()
