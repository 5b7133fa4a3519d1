"""Agents that have learned nothing, beside which a learned policy is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from trainers.pointer import PointerPolicy
from trainers.problem import Problem
from trainers.vec_env import Observation, play

Vectors = VectorEnv[Any, Any, Any]
Choose = Callable[[Observation], NDArray[np.int64]]


def masked_random(env: Vectors, seed: int) -> Choose:
    """Any choice that the mask allows, each as likely."""
    draws = np.random.default_rng(seed)

    def choose(observation: Observation) -> NDArray[np.int64]:
        allowed = observation["mask"] > 0
        chosen: NDArray[np.int64] = np.where(allowed, draws.random(allowed.shape), -1.0).argmax(axis=1)
        return chosen

    return choose


def untrained(env: Vectors, seed: int) -> Choose:
    """The best choice by the network with which PPO begins."""
    torch.manual_seed(seed)
    spaces: tuple[Any, Any] = env.single_observation_space, env.single_action_space
    network = PointerPolicy(*spaces, lambda left: 0.0)
    network.set_training_mode(False)

    def choose(observation: Observation) -> NDArray[np.int64]:
        return network.predict(observation, deterministic=True, action_masks=observation["mask"] > 0)[0]

    return choose


AGENTS: dict[str, Callable[[Vectors, int], Choose]] = {"masked-random": masked_random, "untrained": untrained}
"""By name in `evaluation.references`; each seed has draws, or a network, of its own."""


def reference_usd(problem: Problem, name: str, seed: int) -> float:
    """Dollars of a reference on the stream of a seed: of one of `AGENTS`, or of a policy by name.

    Raises:
        InputError: no such policy.
    """
    if name not in AGENTS:
        return problem.reference_usd(name, seed)
    env = problem.environment(1, autoreset=False)
    return float(problem.usd(play(env, [seed], AGENTS[name](env, seed)))[0])
