"""Commands that ask a service about its jobs and nodes: `submit`, `status`, `cancel`, `logs`, `drain`, `exec` and others."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, strftime
from typing import Annotated, Any

import typer

from policies.commands.options import TableOrJson
from runtime.commands.options import At, Format, JobName, print_as

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, as in `rollmux status`.")]

_STOPPED = 130
_LOOKS_S = 0.2
_EVERY_S = 1.0  # interval of status updates
_AGAIN_S = 5.0  # interval of snapshots in which nothing has changed


@contextmanager
def _ends_quietly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block, even while it waits for an answer, with status 130 and no message."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_STOPPED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pause(seconds: float) -> None:
    """Wait, and raise an error as soon as the reader of standard output is gone.

    Raises:
        BrokenPipeError: If standard output is closed on the other end.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # hang-ups and errors are always reported
    until_s = monotonic() + seconds
    while (left_s := until_s - monotonic()) > 0:
        if output.poll(1000 * min(left_s, _LOOKS_S)):
            raise BrokenPipeError


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
    from runtime.jobs.file import load_jobs
    from runtime.service.client import connected
    from runtime.service.plan import check_limits

    jobs = load_jobs(file)
    check_limits(jobs.jobs, 0)
    with connected(at) as service:
        if dry_run:
            from rollmux_env.report.tables import show
            from runtime.service.tables import preview_table

            previews = service.preview(jobs.jobs)
            show(preview_table(dict(zip((job.id for job in jobs.jobs), previews, strict=True)), service.status()["now_s"]))
            return
        service.submit(jobs.jobs)
    typer.echo(f"submitted: {', '.join(job.id for job in jobs.jobs)}")
    if jobs.cluster is not None:
        typer.echo("the file's `cluster` does not count here; the service has its own")


def execute(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file with an entry of `attach: true`.")],
    words: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command with its arguments, after `--`.")],
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Job of the file. (default: the only one)")] = None,
    accept_changes: Annotated[
        bool,
        typer.Option("--accept-changes", help="Run even if the job's entry has changed; the service keeps its own version."),
    ] = False,
    at: At = None,
) -> None:
    """Start a command on the nodes that a service grants to its job, where it takes turns with other jobs through `rollmux_client`.

    The job is submitted if the service does not have it, and attached. The command gets GPUs, cores and `ROLLMUX_*`. The job is
    done when the command ends with status 0; otherwise it can be started again and continues. ROLLMUX_URL and ROLLMUX_TOKEN name a
    service on another machine.

    Example: `rollmux exec examples/attached.yaml --job first -- python examples/attached_job.py`
    """
    from rollmux_env.errors import InputError
    from rollmux_env.validation_errors import one_line
    from runtime.commands.executing import execute_command
    from runtime.service.client import connected

    entry = _entry_of(file, job)
    if shutil.which(words[0]) is None:
        where = "in that place" if os.path.dirname(words[0]) else "on the path"
        raise InputError(f"{one_line(words[0], 4096)}: there is no command of that name {where}; nothing was submitted")
    with connected(at) as client:

        def say(line: str) -> None:
            typer.echo(f"rollmux exec: {one_line(line, 1000)}", err=True)  # the line may contain names from other users

        status = execute_command(client.url, client.token, entry, words, say, accept_changes)
    raise typer.Exit(status)


def _entry_of(file: Path, job_id: str | None) -> dict[str, Any]:
    """Return the entry of a job file for an attached job.

    Args:
        file: Job file.
        job_id: Id of the job, or None for the only one.

    Raises:
        InputError: If the file cannot be used, or has no such entry; one line.
    """
    from rollmux_env.errors import InputError
    from rollmux_env.validation_errors import one_line
    from runtime.jobs.file import load_jobs
    from runtime.jobs.spec import OwnersJob

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


def cancel(job: JobName, at: At = None) -> None:
    """End a job of a service now, for good: it cannot be resumed, and its name cannot be used again.

    The command prints what the end waits for, and returns early if the time of the end is unknown. The job then ends without it.

    Example: `rollmux cancel echo`
    """
    from runtime.service.client import connected

    with _ends_quietly(), connected(at) as service:
        waits_for = service.cancel(job, lambda reason: typer.echo(f"{job}: {reason}", err=True))
    typer.echo(f"{job}: is cancelled, and ends when what it holds is free" if waits_for else f"cancelled: {job}")


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
    from rollmux_env.validation_errors import printable
    from runtime.jobside.job_log import without_details

    with _ends_quietly():
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
    from rollmux_env.errors import InputError
    from rollmux_env.suggestions import did_you_mean
    from runtime.output import LOGS, follow_lines, lines, read_log
    from runtime.service.address import folder_of
    from runtime.service.client import NoService, connected, is_named

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
                yield from follow_lines(partial(service.log, job) if named else partial(read_log, home), ended, _pause)
                return
    except NoService as nobody:
        if not nobody.has_journal:
            raise
    if Path(job).name != job or not home.is_dir():
        names = [path.name for path in home.parent.iterdir()] if home.parent.is_dir() else []
        raise InputError(f"job {job}: no process of such a job has begun at {folder_of(at)}{did_you_mean(job, names)}")
    yield from lines(home)


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until Ctrl-C; in a pipe, print a snapshot after every change.")
    ] = False,
    format: Format = TableOrJson.table,
    at: At = None,
) -> None:
    """Show the jobs, groups and pools of a service; for a stopped one, the state in its journal.

    Examples: `rollmux status --watch`

    `rollmux status --at rollmux-service --format json`
    """
    from runtime.journal.audit import explained
    from runtime.service.address import folder_of
    from runtime.service.client import NoService, connected
    from runtime.service.tables import status_tables

    try:
        with _ends_quietly(), connected(at) as service:
            if watch:
                _watch(service.status, format)
            report = service.status()
    except NoService as nobody:
        if not nobody.has_journal:
            raise
        from runtime.service.report import past_report

        with explained(folder_of(at)):
            report = past_report(folder_of(at))
    print_as(format, report, *status_tables(report))


def _watch(status_of: Callable[[], dict[str, Any]], format: TableOrJson) -> None:
    """Print reports until Ctrl-C: in place on a terminal, else one after the other."""
    from rich.console import Console, Group
    from rich.live import Live

    from runtime.service.tables import status_tables

    console = Console(markup=False)
    if console.is_terminal and format is TableOrJson.table:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                live.update(Group(*status_tables(status_of())), refresh=True)
                _pause(_EVERY_S)
    shown, shown_s = None, 0.0
    while True:
        report = status_of()
        now = _without_clocks(report)
        if now != shown or monotonic() - shown_s >= _AGAIN_S:
            shown, shown_s = now, monotonic()
            if format is TableOrJson.table:
                typer.echo(strftime("%Y-%m-%d %H:%M:%S"))
            print_as(format, report, *status_tables(report))
        _pause(_EVERY_S)


def _without_clocks(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the values that change with time alone."""
    pools = {name: {key: value for key, value in pool.items() if key != "utilization"} for name, pool in report["pools"].items()}
    jobs = [job | {"overdue": None, "reason": re.sub(r"\d+ s\b", "", job["reason"] or "")} for job in report["jobs"]]
    return {key: value for key, value in report.items() if key != "now_s"} | {"pools": pools, "jobs": jobs}


def drain(node: NodeName, at: At = None) -> None:
    """Move the jobs of a node away at the end of their iteration, and place no other job on it.

    They move to other nodes, or wait in the queue until there are some. The node stays drained until `rollmux undrain`, even if the
    service restarts.

    Example: `rollmux drain rollout-1`
    """
    answer = _ask_about(node, "drain", at)
    typer.echo(f"{node} is drained" if answer["drained"] else f"{node} is being drained")
    for key, what in (
        ("moves", "moves to other nodes at the end of its iteration"),
        ("queues", "will wait in the queue from the end of its iteration on: there is no other place for it now"),
        ("waits_for", "cannot move: the node is used until it ends"),
    ):
        for job_id in answer[key]:
            typer.echo(f"{job_id}: {what}")


def undrain(node: NodeName, at: At = None) -> None:
    """Use a drained node again.

    Example: `rollmux undrain rollout-1`
    """
    _ask_about(node, "undrain", at)
    typer.echo(f"{node} is used again")


def clear(node: NodeName, at: At = None) -> None:
    """Declare that no process uses a suspect node any more, so that it can be granted again.

    A node is suspect if a job's lease on it was lost and it is unknown whether the job's processes have ended. Check that first.

    Example: `rollmux clear rollout-1`
    """
    jobs = _ask_about(node, "clear", at)["jobs"]
    typer.echo(f"{node} is free again; it was held by {', '.join(jobs)}")


def _ask_about(node: str, what: str, at: Path | None) -> Any:
    from urllib.parse import quote

    from runtime.service.client import connected

    with connected(at) as service:
        return service.ask("POST", f"/v1/nodes/{quote(node, safe='')}/{what}")
