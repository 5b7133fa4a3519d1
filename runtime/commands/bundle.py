"""The command `rollmux bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.commands.options import Folder
from runtime.report.bundle import write_bundle


def bundle(folder: Folder, out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new zip file.")]) -> None:
    """Write one file for a bug report: the journal, versions, the machine, and the last lines of the logs without secrets.

    `rollmux journal replay FILE`, `audit` and `check` read it as they read DIR.

    Example: `rollmux bundle run --out run.zip`
    """
    names = write_bundle(folder, out)
    typer.echo(f"{out}: {', '.join(names)}")
    typer.echo("the journal has the names of files and what job files say: look whether you may pass that on")
