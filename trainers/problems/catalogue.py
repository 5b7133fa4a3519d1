"""Learning problems by the name of their environment."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import format_error, not_one_of, problems
from trainers.problem import Problem
from trainers.problems.dispatch import DispatchProblem
from trainers.problems.placement import PlacementProblem
from trainers.problems.queue import QueueProblem
from trainers.problems.rollout import RolloutProblem

PROBLEMS: dict[str, type[Problem]] = {
    "placement": PlacementProblem,
    "dispatch": DispatchProblem,
    "rollout": RolloutProblem,
    "queue": QueueProblem,
}


def make_problem(environment: dict[str, Any], source: str) -> Problem:
    """Create the problem of a configuration's `environment`.

    Args:
        environment: The mapping under the key `environment`.
        source: Start of error messages, such as the name of the file.

    Raises:
        InputError: There is no such problem, or a value is not valid.
    """
    name = environment.get("name")
    if not isinstance(name, str) or name not in PROBLEMS:
        missing = f"is missing; it says which environment: {' or '.join(PROBLEMS)}"
        raise InputError(f"{source}: environment.name: {not_one_of(name, PROBLEMS) if 'name' in environment else missing}")
    model = PROBLEMS[name]
    try:
        return model.model_validate(environment)
    except ValidationError as error:
        raise InputError(f"{source}: {format_error(problems(error)[0], model, 'environment')}") from None
    except InputError as error:
        raise InputError(f"{source}: environment: {error}") from None
