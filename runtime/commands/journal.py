"""`rollmux journal`: what is asked of the journal of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

journal = typer.Typer(no_args_is_help=True, help="Check the journal of a run.")


@journal.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a service.", show_default=False)],
) -> None:
    """Feed a recorded run through the scheduler once more and print what it decides differently.

    Exit status 1 where there is a difference.

    Example: `rollmux journal replay run`
    """
    from runtime.journal import JOURNAL, read_facts
    from runtime.journal_replay import replay_journal

    differences = replay_journal(read_facts(folder / JOURNAL))
    for line in differences.lines:
        typer.echo(line)
    counts = f"{differences.placements} placements, {differences.nodes} changes of nodes and {differences.permits} permits"
    typer.echo(f"{counts} compared: {len(differences.lines)} differences")
    if differences.lines:
        raise typer.Exit(1)
