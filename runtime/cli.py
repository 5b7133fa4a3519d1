"""The commands of this floor. Heavy imports are inside them, so that `rollmux --help` is fast."""

from __future__ import annotations

import typer

from runtime.commands.looks import compare, doctor
from runtime.commands.profile import profile
from runtime.commands.run import run


def mount(app: typer.Typer) -> None:
    """Add the commands of this floor."""
    for command in (run, compare, profile, doctor):
        app.command(rich_help_panel="Run")(command)
