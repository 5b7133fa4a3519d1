"""The command `rollmux logs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.errors import InputError
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import printable
from runtime.commands.options import At, JobName
from runtime.commands.waiting import ends_quietly, pause
from runtime.jobside.job_log import without_details
from runtime.output import LOGS, follow_lines, lines, read_log
from runtime.service.address import folder_of
from runtime.service.client import NoService, connected, is_named, no_service

_EVERY_S = 1.0  # interval of status updates


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Print all metrics of an iteration, not only reward, length, loss and seconds.")
    ] = False,
    at: At = None,
) -> None:
    """Print the log of a job: its iterations, errors and restarts, and the output of its processes.

    The job may have ended, and the service may be stopped. With `--at DIR`, DIR may also be that of `rollmux run --out DIR`. The
    output of an attached job stays on the machine of its owner; its log says which one that is.

    Examples: `rollmux logs echo --follow`

    `rollmux logs echo --at run`
    """
    with ends_quietly():
        plain = printable if sys.stdout.isatty() else str
        for line in _log_lines(job, follow, at):
            typer.echo(plain(line if every else without_details(line)))


def _log_lines(job: str, follow: bool, at: Path | None) -> Iterator[str]:
    """Yield the lines of a job's log, from the service of ROLLMUX_URL or from files.

    Args:
        job: Id of the job.
        follow: Whether to continue until the job or the service has ended.
        at: Folder of the service or the run, or None.
    """
    named = is_named(at)
    home = folder_of(at) / LOGS / job
    try:
        if follow or named:
            with connected(at) as service:
                service.job(job)

                def ended() -> bool:
                    try:
                        return not follow or service.has_ended(job, "stopped")
                    except NoService:
                        return True

                if not named:
                    yield from lines(home, older=True)
                yield from follow_lines(partial(service.log, job) if named else partial(read_log, home), ended, pause)
                return
    except NoService as nobody:
        if not nobody.has_journal:
            raise
    if not folder_of(at).is_dir():
        raise no_service(folder_of(at))
    if Path(job).name != job or not home.is_dir():
        names = [path.name for path in home.parent.iterdir()] if home.parent.is_dir() else []
        raise InputError(f"job {job}: no process of such a job has begun at {folder_of(at)}{did_you_mean(job, names)}")
    yield from lines(home)
