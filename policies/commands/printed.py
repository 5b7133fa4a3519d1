"""Results in the formats in which commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import typer
from rich.console import RenderableType

from rollmux_env.report.latex import to_latex
from rollmux_env.report.results import to_json
from rollmux_env.report.tables import show


class Printed(NamedTuple):
    """Results that a command prints in one of its formats.

    Attributes:
        report: Results as a JSON value.
        tables: Tables for a terminal and for LaTeX.
        csv: Results as CSV, or "" if the command has no such format.
    """

    report: Any
    tables: Sequence[RenderableType]
    csv: str = ""

    def show(self, format: str) -> None:
        """Print the results in a format: `table`, `latex`, `json` or `csv`."""
        if format == "table":
            show(*self.tables)
        elif format == "latex":
            typer.echo("".join(map(to_latex, self.tables)), nl=False)
        else:
            typer.echo(to_json(self.report) if format == "json" else self.csv, nl=False)
