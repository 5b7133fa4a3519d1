"""PPO without the mask, to show what the mask is worth.

The network and the settings are those of `trainers.maskable_ppo`, but any row may be drawn, and the network does not
see the mask. The environment does not execute a masked choice. It charges a penalty, which is the only signal to learn
from.
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
