"""`rollmux compare` and `rollmux doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import TableOrJson

How = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]


def compare(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder given to `rollmux run --out DIR`.", show_default=False)],
    format: How = TableOrJson.table,
) -> None:
    """Compare a real run with the prediction of the simulator from its first iterations.

    Example: `rollmux compare run`
    """
    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show
    from runtime.compare import compare as compare_run
    from runtime.compare import comparison_table
    from runtime.journal.audit import explained
    from runtime.journal.write import read_run

    with explained(folder):
        comparison = compare_run(read_run(folder))
    if format is TableOrJson.json:
        typer.echo(to_json(comparison), nl=False)
    else:
        show(comparison_table(comparison))


def doctor(format: How = TableOrJson.table) -> None:
    """Show what this machine has, what a run would use, and what to install.

    Example: `rollmux doctor`
    """
    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show
    from runtime.doctor import as_report, examine, findings_table

    findings = examine()
    if format is TableOrJson.json:
        typer.echo(to_json(as_report(findings)), nl=False)
    else:
        show(findings_table(findings))
