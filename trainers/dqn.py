"""DQN (Mnih et al. 2015), to show what the mask is worth: it knows none.

The network gives the value of every row. A choice is the best row, or with a probability that falls a random one; what came of it
is remembered. Minibatches of memories pull a row's value towards the reward plus the best value of what came next, as a copy of the
network sees it that is renewed every `target_update_interval` decisions.
"""

from __future__ import annotations

from stable_baselines3 import DQN

from trainers.config import Config
from trainers.pointer import PointerDQNPolicy
from trainers.vec_env import NativeVecEnv


def dqn(config: Config, env: NativeVecEnv, seed: int) -> DQN:
    """DQN with the candidate-scoring network, untrained."""
    settings = config.dqn.model_dump()
    return DQN(PointerDQNPolicy, env, **settings, policy_kwargs={"widths": config.widths}, seed=seed, device="cpu")
