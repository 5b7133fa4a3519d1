"""Reference agents without training, for comparison with a learned policy."""

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
"""Function from observations of E streams to actions, shape (E,)."""


def masked_random(env: Vectors, seed: int) -> Choose:
    """Return an agent that takes a uniformly random choice among those that the mask allows."""
    draws = np.random.default_rng(seed)

    def choose(observation: Observation) -> NDArray[np.int64]:
        allowed = observation["mask"] > 0
        chosen: NDArray[np.int64] = np.where(allowed, draws.random(allowed.shape), -1.0).argmax(axis=1)
        return chosen

    return choose


def untrained(env: Vectors, seed: int) -> Choose:
    """Return an agent that takes the choice with the highest score of a network without training, as PPO initialises it."""
    torch.manual_seed(seed)
    spaces: tuple[Any, Any] = env.single_observation_space, env.single_action_space
    network = PointerPolicy(*spaces, lambda left: 0.0)
    network.set_training_mode(False)

    def choose(observation: Observation) -> NDArray[np.int64]:
        return network.predict(observation, deterministic=True, action_masks=observation["mask"] > 0)[0]

    return choose


AGENTS: dict[str, Callable[[Vectors, int], Choose]] = {"masked-random": masked_random, "untrained": untrained}
"""Factories of agents, by the name of the agent in `evaluation.references`.

The arguments of a factory are an environment and a seed. `masked-random` draws its choices from the seed, and `untrained` the
weights of its network.
"""


def reference_usd(problem: Problem, name: str, seed: int) -> float:
    """Return the dollars that a reference spends on a stream.

    Args:
        problem: Problem that defines the streams.
        name: Name of an agent of `AGENTS`, or of a placement policy.
        seed: Seed of the stream, and of the agent.

    Raises:
        InputError: There is no such policy.
    """
    if name not in AGENTS:
        return problem.reference_usd(name, seed)
    env = problem.environment(1, autoreset=False)
    return float(problem.usd(play(env, [seed], AGENTS[name](env, seed)))[0])
