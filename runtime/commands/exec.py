"""The command `rollmux exec`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.commands.executing import execute_command
from runtime.commands.leased_command import NotNow
from runtime.commands.options import At
from runtime.jobs.file import load_jobs
from runtime.jobs.spec import OwnersJob
from runtime.service.client import NoService, connected


def exec_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file with an entry of `attach: true`.")],
    words: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command with its arguments, after `--`.")],
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Job of the file. (default: the only one)")] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Run even if the job's entry has changed; the service keeps its own version.")
    ] = False,
    at: At = None,
) -> None:
    """Start a command on the nodes that a service grants to its job, where it takes turns with other jobs through `rollmux_client`.

    The job is submitted if the service does not have it, and attached. The command gets GPUs, cores and `ROLLMUX_*`. The job is
    done when the command ends with status 0; otherwise it can be started again and continues. Status 2 says that the job was
    refused, and 75 that the service did not answer. ROLLMUX_URL and ROLLMUX_TOKEN name a service on another machine.

    Example: `rollmux exec examples/attached.yaml --job first -- python examples/attached_job.py`
    """
    entry = _entry_of(file, job)
    if shutil.which(words[0]) is None:
        where = "in that place" if os.path.dirname(words[0]) else "on the path"
        raise InputError(f"{one_line(words[0], 4096)}: there is no command of that name {where}; nothing was submitted")
    try:
        with connected(at) as client:
            status = execute_command(client.url, client.token, entry, words, _say, accept_changes)
    except NoService as error:
        if error.has_journal:  # it can be continued
            raise NotNow(str(error)) from None
        raise
    raise typer.Exit(status)


def _say(line: str) -> None:
    try:
        typer.echo(f"rollmux exec: {one_line(line, 1000)}", err=True)  # the line may contain names from other users
    except OSError:  # its reader has gone, or the disk is full: processes are ended and leases kept all the same
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what was not written does not fail again at the exit


def _entry_of(file: Path, job_id: str | None) -> dict[str, Any]:
    """Return the entry of a job file for an attached job.

    Args:
        file: Job file.
        job_id: Id of the job, or None for the only one.

    Raises:
        InputError: If the file cannot be used, or has no such entry; one line.
    """
    jobs = {spec.id: spec for spec in load_jobs(file).jobs}
    name = one_line(str(file), 4096)
    if job_id is None and len(jobs) > 1:
        raise InputError(f"{name}: has {len(jobs)} jobs; --job says which: {', '.join(jobs)}")
    spec = next(iter(jobs.values())) if job_id is None else jobs.get(job_id)
    if spec is None:
        raise InputError(f"--job {job_id}: {name} has no such job; it has {', '.join(jobs)}")
    if not isinstance(spec, OwnersJob):
        raise InputError(f"{name}: job {spec.id}: is no job to attach; its entry has to say `attach: true`")
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"folder"})
