"""Greedy episodes on held-out streams, and the dollars of other policies on the same streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm

from rollmux_env.errors import InputError
from rollmux_env.files import read_json, write_whole
from trainers.config import Evaluation
from trainers.problem import Problem
from trainers.vec_env import Observation, play

References = dict[str, NDArray[np.float64]]


def find_references(problem: Problem, settings: Evaluation, file: Path, tell: Callable[[str], None]) -> References:
    """Return (E,) dollars by policy on the held-out streams; missing ones are computed and added to the file.

    Args:
        tell: called with a description of each computation.

    Raises:
        InputError: no such policy, or a file that is not what this function wrote.
    """
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    known = _read(file)
    references: References = {}
    for policy in settings.references:
        usd = []
        for seed in seeds:
            key = f"{policy} on {problem.reference_key(seed)}"
            if key not in known:
                tell(f"{policy}, seed {seed}")
                known[key] = problem.reference_usd(policy, seed)
                write_whole(file, json.dumps(known, indent=1) + "\n")
            usd.append(known[key])
        references[policy] = np.array(usd)
    return references


def evaluate(
    problem: Problem, env: VectorEnv[Any, Any, Any], model: BaseAlgorithm, first_seed: int, references: References
) -> dict[str, float]:
    """Figures of one greedy episode on every held-out stream. Draws nothing at random.

    Args:
        env: of `problem.held_out`, a stream a seed. first_seed: of the first stream.
    """

    def choose(observation: Observation) -> NDArray[np.int64]:
        masks = {"action_masks": observation["mask"] > 0} if isinstance(model, MaskablePPO) else {}
        return np.asarray(model.predict(observation, deterministic=True, **masks)[0])  # type: ignore[arg-type]

    played = play(env, range(first_seed, first_seed + env.num_envs), choose)
    return problem.figures(env, played, references)


def _read(file: Path) -> dict[str, float]:
    if not file.exists():
        return {}
    try:
        known = read_json(file)
        return {str(key): float(usd) for key, usd in known.items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"{file}: is no file of reference dollars, or damaged; delete it to have them computed again") from None
