"""The command `rollmux examples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.example_files import copy_example
from rollmux_env.example_files import examples as shipped_examples

app = typer.Typer(invoke_without_command=True)


@app.callback()
def examples(context: typer.Context) -> None:
    """List the examples that come with RollMux, and copy them.

    Commands find scenarios and job files among them by name, as in `rollmux bench quickstart`.

    Examples: `rollmux examples`, `rollmux examples copy own_job`
    """
    if context.invoked_subcommand is None:
        shown = shipped_examples()
        width = max(len(example.name) for example in shown)
        for is_found, heading in ((True, "Found by name:"), (False, "Code to copy:")):
            typer.echo(heading)
            for example in shown:
                if example.is_found == is_found:
                    typer.echo(f"  {example.name:{width}}  {example.about}")


@app.command()
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an example.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the copies go.")] = Path(),
) -> None:
    """Copy the files of an example, to change them; existing files are not replaced.

    Example: `rollmux examples copy own_job`
    """
    for path in copy_example(name, folder):
        typer.echo(path)
