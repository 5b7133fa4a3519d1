"""DQN (Mnih et al. 2015) without a mask, to show what the mask is worth.

The network estimates the value of every row. A decision takes the best row or, with a decreasing probability, a random
one, and stores the transition. Minibatches of transitions pull the value of a row towards the reward plus the best
value of the next decision, as estimated by a copy of the network that is updated every `target_update_interval`
decisions.
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
