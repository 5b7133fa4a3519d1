"""Masked PPO: proximal policy optimization (Schulman et al. 2017) over the valid choices (Huang and Ontañón 2020).

Every stream plays `n_steps` decisions. Advantages are generalised (GAE, Schulman et al. 2016) over decisions, not
hours: the reward is in dollars, undiscounted by default. Then `n_epochs` passes over minibatches of all decisions
maximise the clipped objective with Adam. Masked choices have probability 0 when a choice is drawn and when its gradient
is computed.
"""

from __future__ import annotations

from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import LinearSchedule

from trainers.config import Config
from trainers.pointer import PointerPolicy
from trainers.vec_env import NativeVecEnv


def maskable_ppo(config: Config, env: NativeVecEnv, seed: int) -> MaskablePPO:
    """Masked PPO with the candidate-scoring network, untrained."""
    settings = ppo_settings(config)
    return MaskablePPO(PointerPolicy, env, **settings, policy_kwargs={"widths": config.widths}, seed=seed, device="cpu")


def ppo_settings(config: Config) -> dict[str, Any]:
    """The settings under `ppo` as Stable-Baselines3 takes them."""
    ppo = config.ppo.model_dump()
    linear, rate = ppo.pop("linear"), ppo.pop("learning_rate")
    return {**ppo, "learning_rate": LinearSchedule(rate, 0.0, 1.0) if linear else rate}
