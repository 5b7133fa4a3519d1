"""The command `rollmux schema`."""

from __future__ import annotations

import typer

from rollmux_env.report.results import to_json
from rollmux_env.schema import scenario_schema


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors.

    Example: `rollmux schema > scenario.schema.json`
    """
    typer.echo(to_json(scenario_schema()), nl=False)
