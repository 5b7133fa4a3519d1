"""The commands of this floor: `run`, `compare`, `doctor`. Heavy imports are inside them, so that `rollmux --help` is fast."""

from __future__ import annotations

import typer

from runtime.commands.looks import compare, doctor
from runtime.commands.run import run


def mount(app: typer.Typer) -> None:
    """Add the commands of this floor."""
    for command in (run, compare, doctor):
        app.command(rich_help_panel="Run")(command)
