"""Text of scenarios without keys at their default values. It loads back to an equal scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollmux_env.files import write_whole, yaml_text
from rollmux_env.scenario import Scenario


def to_json(scenario: Scenario) -> str:
    """Return the scenario as JSON, with one line per job."""
    data = _plain(scenario)
    lines = [f' "{key}": {json.dumps(value)}' for key, value in data.items() if key != "jobs"]
    jobs = ",\n".join(f"  {json.dumps(job)}" for job in data["jobs"])
    return "{\n" + ",\n".join([*lines, f' "jobs": [\n{jobs}\n ]']) + "\n}\n"


def to_yaml(scenario: Scenario) -> str:
    """Return the scenario as YAML 1.2, with one block per job."""
    return yaml_text(_plain(scenario))


def write_scenario(path: str | Path, scenario: Scenario) -> None:
    """Write a scenario file atomically: JSON if the name ends in `.json`, otherwise YAML.

    Raises:
        InputError: If the file cannot be written.
    """
    write_whole(path, to_json(scenario) if Path(path).suffix == ".json" else to_yaml(scenario))


def _plain(scenario: Scenario) -> dict[str, Any]:
    data: dict[str, Any] = _short(scenario.model_dump(exclude_defaults=True))
    return data


def _short(value: Any) -> Any:
    """Return a value with whole floats as integers and tuples as lists."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
