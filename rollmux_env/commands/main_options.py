"""The options of `rollmux` itself: `--version` and `--debug`."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Annotated

import typer

from rollmux_env.errors import DEBUG


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rollmux {version('rollmux')}")
        raise typer.Exit


def before_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error too.")] = False,
) -> None:
    """Schedule RL post-training jobs on a rollout pool and a training pool.

    Start with `rollmux bench quickstart`, and with `rollmux doctor` before the first `rollmux run`.
    """
    if debug:
        os.environ[DEBUG] = "1"
