"""Masked PPO: proximal policy optimization (Schulman et al. 2017) over the valid choices (Huang and Ontañón 2020).

Every stream plays `n_steps` decisions. Advantages are generalised (GAE, Schulman et al. 2016) over decisions, not hours: the reward
is in dollars, undiscounted by default. Then `n_epochs` passes over minibatches of all decisions maximise the clipped objective with
Adam. Masked choices have probability 0, both when a choice is sampled and when its gradient is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import LinearSchedule

from policies.placement.policy_file import PolicyConfig, read_policy
from rollmux_env.errors import InputError
from trainers.config import PPO, MaskablePPOConfig, Start
from trainers.network import Scorer
from trainers.pointer import PointerPolicy
from trainers.problem import Problem
from trainers.vec_env import NativeVecEnv

_SCORES = ("score.weight", "score.bias", "skip.weight")  # a row's logit is linear in these


def maskable_ppo(config: MaskablePPOConfig, problem: Problem, seed: int) -> MaskablePPO:
    """Create a masked PPO with an untrained candidate-scoring network."""
    settings, env = ppo_settings(config), NativeVecEnv(problem.environment(config.streams))
    return MaskablePPO(PointerPolicy, env, **settings, policy_kwargs={"widths": config.widths}, seed=seed, device="cpu")


def ppo_settings(config: MaskablePPOConfig) -> dict[str, Any]:
    """Convert the settings under `ppo` to arguments of Stable-Baselines3."""
    return {**config.ppo.model_dump(exclude={"linear"}), "learning_rate": learning_rate(config.ppo)}


def learning_rate(settings: PPO) -> float | LinearSchedule:
    """Return the learning rate of Adam, or its schedule."""
    return LinearSchedule(settings.learning_rate, 0.0, 1.0) if settings.linear else settings.learning_rate


def begin_with(network: Scorer, start: Start, wanted: PolicyConfig) -> None:
    """Load the weights of a policy file into a new learner. The critic keeps its weights, because imitation does not train one.

    Args:
        network: Network to load into.
        start: Policy file and factor on its scores.
        wanted: Configuration that a policy file of this run has.

    Raises:
        InputError: There is no such file, or its network has other features or layers.
    """
    config, weights = read_policy(start.file, wanted.decides)
    for name in ("job_features", "candidate_features", "cluster_features", "widths", "moves"):
        if getattr(config, name) != getattr(wanted, name):
            raise InputError(f"start.file: {start.file}: its {name} are not this run's")
    scaled = {name: array * np.float32(start.sharpness if name in _SCORES else 1) for name, array in weights.items()}
    known = {name: torch.from_numpy(array) for name, array in scaled.items() if not name.startswith("value.")}
    network.load_state_dict(network.state_dict() | known)
