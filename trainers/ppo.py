"""PPO without the mask, to show what the mask is worth.

The same network and the same settings as `trainers.maskable_ppo`, but any row may be drawn, and the network is not told which may
be chosen. The environment does not carry a forbidden choice out; it charges a penalty, which is all there is to learn from.
"""

from __future__ import annotations

from stable_baselines3 import PPO

from trainers.config import Config
from trainers.maskable_ppo import ppo_settings
from trainers.pointer import PointerPolicy
from trainers.vec_env import NativeVecEnv


def ppo(config: Config, env: NativeVecEnv, seed: int) -> PPO:
    """PPO with the candidate-scoring network, untrained."""
    return PPO(
        PointerPolicy,  # type: ignore[arg-type]
        env,
        **ppo_settings(config),
        policy_kwargs={"widths": config.widths, "sees_mask": False},
        seed=seed,
        device="cpu",
    )
