"""The command `rollmux compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from runtime.commands.options import Format
from runtime.compare import compare as compare_run
from runtime.compare import comparison_table
from runtime.journal.check import explained
from runtime.journal.write import read_run
from runtime.service.address import check_run


def compare(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder given to `rollmux run --out DIR`.")],
    format: Format = TableOrJson.table,
) -> None:
    """Compare a real run with the prediction of the simulator from its first iterations.

    Example: `rollmux compare run`
    """
    check_run(folder)
    with explained(folder):
        comparison = compare_run(read_run(folder))
    Printed(comparison, [comparison_table(comparison)]).show(format)
