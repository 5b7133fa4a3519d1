"""The commands of this floor: runs, services and what asks about them. Heavy imports are inside them: `rollmux --help` is fast."""

from __future__ import annotations

import typer

from runtime.commands.diagnostics import compare, doctor
from runtime.commands.exec import execute
from runtime.commands.export import export
from runtime.commands.jobs import cancel, logs, submit
from runtime.commands.journal import journal
from runtime.commands.nodes import drain, undrain
from runtime.commands.profile import profile
from runtime.commands.run import run
from runtime.commands.samples import samples
from runtime.commands.serve import serve
from runtime.commands.status import status
from runtime.commands.token import token


def mount(app: typer.Typer) -> None:
    """Add the commands of this floor."""
    for command in (run, compare, serve, submit, status, cancel, logs, drain, undrain, samples, export, profile, doctor):
        app.command(rich_help_panel="Run")(command)
    app.command("exec", rich_help_panel="Run")(execute)
    app.add_typer(journal, name="journal", rich_help_panel="Run")
    app.add_typer(token, name="token", rich_help_panel="Run")
