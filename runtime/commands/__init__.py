"""The commands for runs and services. Heavy modules are imported inside the commands, so that `rollmux --help` is fast."""

from __future__ import annotations

import typer


def mount(app: typer.Typer) -> None:
    """Add these commands to the application."""
    from runtime.commands.folders import bundle, compare, export, journal, samples
    from runtime.commands.jobs import cancel, clear, drain, execute, logs, status, submit, undrain
    from runtime.commands.machine import doctor, profile
    from runtime.commands.run import run
    from runtime.commands.serve import serve
    from runtime.commands.token import token

    of_service = (serve, submit, status, cancel, logs, drain, undrain, clear)
    for command in (run, compare, *of_service, samples, export, bundle, profile, doctor):
        app.command(rich_help_panel="Run")(command)
    app.command("exec", rich_help_panel="Run")(execute)
    app.add_typer(journal, name="journal", rich_help_panel="Run")
    app.add_typer(token, name="token", rich_help_panel="Run")
