"""The commands of this floor: `run`. Heavy imports are inside the commands, so that `rollmux --help` is fast."""

from __future__ import annotations

import typer

from runtime.commands.run import run


def mount(app: typer.Typer) -> None:
    """Add the commands of this floor."""
    app.command(rich_help_panel="Run")(run)
