"""Output in a chosen format."""

from __future__ import annotations

from typing import Any

import typer

from policies.commands.options import TableOrJson
from rollmux_env.report.results import to_json
from rollmux_env.report.tables import show


def print_as(format: TableOrJson, report: Any, *tables: Any) -> None:
    """Print a report in the chosen format.

    Args:
        format: Output format.
        report: Report as a JSON value.
        *tables: Tables that show the report.
    """
    if format is TableOrJson.json:
        typer.echo(to_json(report), nl=False)
    else:
        show(*tables)
