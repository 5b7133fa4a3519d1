"""The interface of a learning problem: environments, reference policies, figures, and a file for the result."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import ValidationError

from policies.placement.policy_file import PolicyConfig
from rollmux_env.errors import InputError, lacks
from rollmux_env.validation_errors import format_error, not_one_of, problems

PROBLEMS = {
    "placement": "trainers.placement:PlacementProblem",
    "dispatch": "trainers.dispatch:DispatchProblem",
    "rollout": "trainers.rollout:RolloutProblem",
}

Figures = Mapping[str, NDArray[Any]]


class Problem(Protocol):
    """A learning problem: a pydantic model of a configuration's `environment`."""

    def training(self, streams: int) -> VectorEnv[Any, Any, Any]:
        """Parallel streams with autoreset in the same step."""
        ...

    def held_out(self, streams: int) -> VectorEnv[Any, Any, Any]:
        """The same with `autoreset=False`, for `trainers.vec_env.play`."""
        ...

    def reference_key(self, seed: int) -> str:
        """A hash that identifies the stream of a seed across runs."""
        ...

    def reference_usd(self, policy: str, seed: int) -> float:
        """Dollars of a policy on the stream of a seed, from the bench.

        Raises:
            InputError: no such policy.
        """
        ...

    def figures(
        self, env: VectorEnv[Any, Any, Any], played: Figures, references: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, float]:
        """Means over the episodes of `play` in `env`.

        Args:
            references: (E,) dollars of each reference on the same streams.

        Returns:
            Figures by name, as TensorBoard shows them; among them `return`, by which the best network is chosen.
        """
        ...

    def policy_config(self, widths: tuple[int, ...], provenance: dict[str, str | int | float]) -> PolicyConfig:
        """The configuration in a policy file for a network with these layers."""
        ...


def make_problem(environment: dict[str, Any], source: str) -> Problem:
    """The problem of a configuration's `environment`.

    Raises:
        InputError: no such problem, or a value that does not fit; one line that begins with `source`.
    """
    name = environment.get("name")
    if not isinstance(name, str) or name not in PROBLEMS:
        missing = f"is missing; it says which environment: {' or '.join(PROBLEMS)}"
        raise InputError(f"{source}: environment.name: {not_one_of(name, PROBLEMS) if 'name' in environment else missing}")
    module, _, kind = PROBLEMS[name].partition(":")
    try:
        model = getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        raise InputError(f"{source}: environment.name: {name} {lacks(error.name or module)}") from None
    try:
        problem: Problem = model.model_validate(environment)
        return problem
    except ValidationError as error:
        raise InputError(f"{source}: {format_error(problems(error)[0], model, 'environment')}") from None
    except InputError as error:
        raise InputError(f"{source}: environment: {error}") from None
