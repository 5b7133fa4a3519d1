"""Starts training from a policy file."""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

from policies.placement.policy_file import PolicyConfig, read_policy
from rollmux_env.errors import InputError
from trainers.config import Start
from trainers.network import Scorer

_SCORES = ("score.weight", "score.bias", "skip.weight")  # a row's logit is linear in these


def scorer_of(model: BaseAlgorithm) -> Scorer:
    """The network that a learner learns."""
    network = model.policy.q_net if isinstance(model, DQN) else model.policy
    assert isinstance(network.scorer, Scorer)
    return network.scorer


def begin_with(model: BaseAlgorithm, start: Start, wanted: PolicyConfig) -> None:
    """Give a new learner the weights of a policy file. Its critic stays as it is: files of imitation hold none that is trained.

    Args:
        wanted: what a file of this run would say.

    Raises:
        InputError: no such file, or one of a network that reads other numbers or has other layers.
    """
    config, weights = read_policy(start.file, wanted.decides)
    for name in ("job_features", "candidate_features", "cluster_features", "widths", "moves"):
        if getattr(config, name) != getattr(wanted, name):
            raise InputError(f"start.file: {start.file}: its {name} are not this run's")
    network = scorer_of(model)
    scaled = {name: array * np.float32(start.sharpness if name in _SCORES else 1) for name, array in weights.items()}
    known = {name: torch.from_numpy(array) for name, array in scaled.items() if not name.startswith("value.")}
    network.load_state_dict(network.state_dict() | known)
    if isinstance(model, DQN):
        model.q_net_target.load_state_dict(model.q_net.state_dict())
