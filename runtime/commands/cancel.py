"""The command `rollmux cancel`."""

from __future__ import annotations

import typer

from runtime.commands.options import At, JobName
from runtime.commands.waiting import ends_quietly
from runtime.service.client import connected


def cancel(job: JobName, at: At = None) -> None:
    """End a job of a service now, for good: it cannot be resumed.

    The command prints what the end waits for, and returns early if the time of the end is unknown. The job then ends without it.

    Example: `rollmux cancel echo`
    """
    with ends_quietly(), connected(at) as service:
        waits_for = service.cancel(job, lambda reason: typer.echo(f"{job}: {reason}", err=True))
    typer.echo(f"{job}: is cancelled, and ends when what it holds is free" if waits_for else f"cancelled: {job}")
