"""The command `rollmux status`."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic, strftime
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import not_one_of
from runtime.commands.options import At, Format
from runtime.commands.waiting import ends_quietly, pause
from runtime.journal.check import explained
from runtime.service.address import folder_of
from runtime.service.client import NoService, connected
from runtime.service.report import STATES, past_report
from runtime.service.tables import status_tables

_EVERY_S = 1.0  # interval of status updates
_AGAIN_S = 5.0  # interval of snapshots in which nothing has changed


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until Ctrl-C; in a pipe, print a snapshot after every change.")
    ] = False,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Show the jobs of a user alone.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATES", help="Show jobs in some states alone, separated by commas.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all jobs that have ended, and not only the last ten.")] = False,
    format: Format = TableOrJson.table,
    at: At = None,
) -> None:
    """Show the jobs, groups and pools of a service; for a stopped one, the state in its journal.

    Examples: `rollmux status --watch`

    `rollmux status --user ann --state waiting,failed`

    `rollmux status --at rollmux-service --format json`
    """
    states = None if state is None else state.split(",")
    if (unknown := next((name for name in states or () if name not in STATES), None)) is not None:
        raise InputError(f"--state {state}: {not_one_of(unknown, [*STATES])}")

    def selected(report: dict[str, Any]) -> dict[str, Any]:
        jobs = (job for job in report["jobs"] if user in (None, job["user"]) and (states is None or job["state"] in states))
        return report | {"jobs": [*jobs]}

    try:
        with ends_quietly(), connected(at) as service:
            if watch:
                _watch(lambda: selected(service.status()), format, every)
            report = service.status()
    except NoService as nobody:
        if not nobody.has_journal:
            raise

        with explained(folder_of(at)):
            report = past_report(folder_of(at))
    Printed(selected(report), status_tables(selected(report), every)).show(format)


def _watch(status_of: Callable[[], dict[str, Any]], format: TableOrJson, every: bool) -> None:
    """Print reports until Ctrl-C: in place on a terminal, else one after the other."""
    console = Console(markup=False)
    if console.is_terminal and format is TableOrJson.table:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                live.update(Group(*status_tables(status_of(), every)), refresh=True)
                pause(_EVERY_S)
    shown, shown_s = None, 0.0
    while True:
        report = status_of()
        now = _without_clocks(report)
        if now != shown or monotonic() - shown_s >= _AGAIN_S:
            shown, shown_s = now, monotonic()
            if format is TableOrJson.table:
                typer.echo(strftime("%Y-%m-%d %H:%M:%S"))
            Printed(report, status_tables(report, every)).show(format)
        pause(_EVERY_S)


def _without_clocks(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the values that change with time alone."""
    pools = {name: {key: value for key, value in pool.items() if key != "utilization"} for name, pool in report["pools"].items()}
    ticking: dict[str, Any] = {"overdue": None, "queue_h": None, "usd": None}
    jobs = [job | ticking | {"reason": re.sub(r"\d+ s\b", "", job["reason"] or "")} for job in report["jobs"]]
    users = [user | {"node_hours": None, "usage_h": None} for user in report["users"]]
    timeless = {key: value for key, value in report.items() if key != "now_s"}
    return timeless | {"pools": pools, "jobs": jobs, "users": users}
