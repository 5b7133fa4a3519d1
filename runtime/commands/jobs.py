"""`rollmux submit`, `cancel` and `logs`: what is asked of a service about its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

At = Annotated[
    Path | None,
    typer.Option(
        "--at",
        metavar="DIR",
        help="The service's folder. (default: the service of $ROLLMUX_URL and $ROLLMUX_TOKEN; $ROLLMUX_SERVICE; rollmux-service)",
        show_default=False,
    ),
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.", show_default=False)]


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file (docs/reference/jobs.md).", show_default=False)],
    at: At = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what would become of each job after those before it: its place, or why it would wait."
        ),
    ] = False,
) -> None:
    """Submit the jobs of a file to a service. They are in its journal when the command ends.

    With a token of ROLLMUX_TOKEN they are that user's. Where --at is not given, ROLLMUX_URL names the service.

    Examples: `rollmux submit examples/two_jobs.yaml`

    `rollmux submit examples/two_jobs.yaml --dry-run`
    """
    from runtime.jobs.spec import load_jobs
    from runtime.service.client import connected
    from runtime.service.plan import check_limits

    jobs = load_jobs(file)
    check_limits(jobs.jobs, 0)
    with connected(at) as service:
        if dry_run:
            from rollmux_env.report.tables import show
            from runtime.service.queue_tables import preview_table

            previews = service.preview(jobs.jobs)
            show(preview_table(dict(zip((job.id for job in jobs.jobs), previews, strict=True)), service.status()["now_s"]))
            return
        service.submit(jobs.jobs)
    typer.echo(f"submitted: {', '.join(job.id for job in jobs.jobs)}")
    if jobs.cluster is not None:
        typer.echo("the file's `cluster` does not count here; the service has its own")


def cancel(job: JobName, at: At = None) -> None:
    """End a job of a service now, for good: it cannot be resumed, and its name cannot be used again.

    Example: `rollmux cancel echo`
    """
    from runtime.service.client import connected

    with connected(at) as service:
        service.cancel(job)
    typer.echo(f"cancelled: {job}")


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Print all metrics of an iteration, not reward, length, loss and seconds alone.")
    ] = False,
    at: At = None,
) -> None:
    """Print the log of a job: its iterations, errors and restarts, and the output of its processes.

    The job may have ended, and the service be stopped; with `--at DIR`, DIR may also be that of `rollmux run --out DIR`. What an
    attached job prints is where its owner runs; its log says where that is.

    Examples: `rollmux logs echo --follow`

    `rollmux logs echo --at run`
    """
    from runtime.commands.streams import ends_quietly
    from runtime.execution.job_log import without_details

    with ends_quietly():
        for line in _lines(job, follow, at):
            typer.echo(line if every else without_details(line))


def _lines(job: str, follow: bool, at: Path | None) -> Iterator[str]:
    """What a job has printed, or prints until it or its service has ended: of the service of ROLLMUX_URL, or from files."""
    from rollmux_env.errors import InputError
    from rollmux_env.suggestions import did_you_mean
    from runtime.commands.streams import pause
    from runtime.output import LOGS, follow_lines, lines
    from runtime.service.address import folder_of
    from runtime.service.client import ENDED, NoService, connected, is_named

    named = is_named(at)
    home = folder_of(at) / LOGS / job
    try:
        if follow or named:
            with connected(at) as service:
                service.job(job)

                def ended() -> bool:
                    try:
                        return not follow or service.job(job)["state"] in (*ENDED, "stopped")
                    except NoService:
                        return True

                yield from service.log_lines(job, ended, pause) if named else follow_lines(home, ended, pause)
                return
    except NoService as nobody:
        if not nobody.has_journal:
            raise
    if Path(job).name != job or not home.is_dir():
        names = [path.name for path in home.parent.iterdir()] if home.parent.is_dir() else []
        raise InputError(f"job {job}: no process of such a job has begun at {folder_of(at)}{did_you_mean(job, names)}")
    yield from lines(home)
