"""`rollmux status`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policies.commands.options import TableOrJson
from runtime.commands.jobs import At

_EVERY_S = 1.0  # between looks
_AGAIN_S = 5.0  # between snapshots in which nothing has changed


def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update until Ctrl-C; in a pipe, print a snapshot after every change.")
    ] = False,
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
    at: At = None,
) -> None:
    """Show the jobs, groups and pools of a service; for a stopped one, the state in its journal.

    Examples: `rollmux status --watch`

    `rollmux status --at rollmux-service --format json`
    """
    from runtime.commands.streams import ends_quietly
    from runtime.journal.audit import explained
    from runtime.service.address import folder_of
    from runtime.service.client import NoService, connected
    from runtime.service.report import past_report

    try:
        with ends_quietly(), connected(at) as service:
            if watch:
                _watch(service.status, format)
            else:
                _print(service.status(), format)
    except NoService as nobody:
        if not nobody.has_journal:
            raise
        with explained(folder_of(at)):
            _print(past_report(folder_of(at)), format)


def _print(report: dict[str, Any], format: TableOrJson) -> None:
    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show
    from runtime.service.tables import status_tables

    if format is TableOrJson.json:
        typer.echo(to_json(report), nl=False)
    else:
        show(*status_tables(report))


def _watch(report: Any, format: TableOrJson) -> None:
    """Print reports for ever: a terminal's in place, others one after the other."""
    from time import monotonic, strftime

    from rich.console import Console, Group
    from rich.live import Live

    from runtime.commands.streams import pause
    from runtime.service.tables import status_tables

    console = Console(markup=False)
    if console.is_terminal and format is TableOrJson.table:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                live.update(Group(*status_tables(report())), refresh=True)
                pause(_EVERY_S)
    shown, shown_s = None, 0.0
    while True:
        current = report()
        now = _without_clocks(current)
        if now != shown or monotonic() - shown_s >= _AGAIN_S:
            shown, shown_s = now, monotonic()
            if format is TableOrJson.table:
                typer.echo(strftime("%Y-%m-%d %H:%M:%S"))
            _print(current, format)
        pause(_EVERY_S)


def _without_clocks(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what changes by itself."""
    pools = {name: {key: value for key, value in pool.items() if key != "utilization"} for name, pool in report["pools"].items()}
    return {key: value for key, value in report.items() if key != "now_s"} | {"pools": pools}
