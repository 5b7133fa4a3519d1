"""The command `rollmux submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.report.tables import show
from runtime.commands.options import At
from runtime.jobs.file import load_jobs
from runtime.service.client import connected
from runtime.service.plan import check_limits
from runtime.service.tables import preview_table


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file (docs/reference/jobs.md).")],
    at: At = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print where each job would be placed after those before it, or why it would wait."),
    ] = False,
) -> None:
    """Submit the jobs of a file to a service. They are in its journal when the command ends.

    A job without a user belongs to the user of ROLLMUX_TOKEN. Without --at, ROLLMUX_URL names the service.

    Examples: `rollmux submit examples/two_jobs.yaml`

    `rollmux submit examples/two_jobs.yaml --dry-run`
    """
    jobs = load_jobs(file)
    check_limits(jobs.jobs, 0)
    with connected(at) as service:
        if dry_run:
            previews = service.preview(jobs.jobs)
            show(preview_table(dict(zip((job.id for job in jobs.jobs), previews, strict=True)), service.status()["now_s"]))
            return
        service.submit(jobs.jobs)
    typer.echo(f"submitted: {', '.join(job.id for job in jobs.jobs)}")
    if jobs.cluster is not None:
        typer.echo("the file's `cluster` does not count here; the service has its own")
