"""`rollmux exec`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.commands.jobs import At


def execute(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file with an entry of `attach: true`.", show_default=False)],
    words: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to start, after `--`.", show_default=False)],
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Job of the file. (default: the only one)", show_default=False)
    ] = None,
    at: At = None,
) -> None:
    """Start a command on the nodes that a service gives its job: it takes turns there with other jobs, by `rollmux_client`.

    The job is submitted if the service does not have it, and attached. The command gets GPUs, cores and `ROLLMUX_*`. The job is
    done when the command ends with status 0; else it can be started again and goes on. ROLLMUX_URL and ROLLMUX_TOKEN name a
    service on another machine.

    Example: `rollmux exec examples/attached.yaml --job first -- python examples/attached_job.py`
    """
    from runtime.service.client import connected, require_client

    require_client("exec")
    from runtime.commands.executing import check_command, entry_of, execute_command

    entry = entry_of(file, job)
    check_command(words)
    with connected(at) as client:
        status = execute_command(client.service, entry, words, lambda line: typer.echo(f"rollmux exec: {line}", err=True))
    raise typer.Exit(status)
