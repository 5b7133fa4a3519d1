"""`rollmux status`."""

from __future__ import annotations

from typing import Annotated

import typer

from policies.commands.options import TableOrJson
from runtime.commands.jobs import At


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")] = False,
    format: Annotated[TableOrJson, typer.Option("--format", help="How to print it.")] = TableOrJson.table,
    at: At = None,
) -> None:
    """Say what every job, group and pool of a service does.

    Example: `rollmux status --watch`
    """
    import time

    from rich.console import Console
    from rich.live import Live

    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show
    from runtime.service.client import connected
    from runtime.service.tables import status_tables

    with connected(at) as service:
        if not watch:
            found = service.ask("report")
            if format is TableOrJson.json:
                typer.echo(to_json(found), nl=False)
            else:
                show(*status_tables(found))
            return
        if format is TableOrJson.json:
            while True:
                typer.echo(to_json(service.ask("report")), nl=False)
                time.sleep(1.0)
        from rich.console import Group

        with Live(console=Console(markup=False), auto_refresh=False, screen=False) as live:
            while True:
                live.update(Group(*status_tables(service.ask("report"))), refresh=True)
                time.sleep(1.0)
