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
    dqn = config.dqn
    return DQN(
        PointerDQNPolicy,
        env,
        learning_rate=dqn.learning_rate,
        buffer_size=dqn.buffer_size,
        learning_starts=dqn.learning_starts,
        batch_size=dqn.batch_size,
        train_freq=dqn.train_freq,
        gradient_steps=dqn.gradient_steps,
        gamma=dqn.gamma,
        target_update_interval=dqn.target_update_interval,
        exploration_fraction=dqn.exploration_fraction,
        exploration_final_eps=dqn.exploration_final_eps,
        policy_kwargs={"widths": config.widths},
        seed=seed,
        device="cpu",
    )
