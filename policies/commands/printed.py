"""Results of `rollmux bench` in the formats in which it prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import typer
from rich.console import RenderableType

from policies.commands.options import BenchFormat
from rollmux_env.report.latex import to_latex
from rollmux_env.report.results import to_json
from rollmux_env.report.tables import show


class Printed(NamedTuple):
    """Results that a command prints in one of its formats.

    Attributes:
        report: Results as plain values, for JSON.
        csv: Results as CSV.
        tables: Tables for a terminal and for LaTeX.
    """

    report: Mapping[str, Any]
    csv: str
    tables: Sequence[RenderableType]

    def show(self, format: BenchFormat) -> None:
        """Print the results in a format."""
        if format is BenchFormat.table:
            show(*self.tables)
        elif format is BenchFormat.latex:
            typer.echo("".join(map(to_latex, self.tables)), nl=False)
        else:
            typer.echo(to_json(self.report) if format is BenchFormat.json else self.csv, nl=False)
