"""`rollmux journal`: checks of the journal of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

journal = typer.Typer(no_args_is_help=True, help="Check the journal of a run.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a service.", show_default=False)]


@journal.command()
def replay(folder: Folder) -> None:
    """Feed a recorded run through the scheduler once more and print what it decides differently.

    Exit status 1 where there is a difference.

    Example: `rollmux journal replay run`
    """
    from runtime.journal.audit import explained
    from runtime.journal.replay import replay_journal
    from runtime.journal.write import JOURNAL, read_facts

    with explained(folder):
        differences = replay_journal(read_facts(folder / JOURNAL))
    for line in differences.lines:
        typer.echo(line)
    counts = f"{differences.placements} placements, {differences.nodes} changes of nodes and {differences.permits} permits"
    typer.echo(f"{counts} compared: {len(differences.lines)} differences")
    if differences.lines:
        raise typer.Exit(1)


@journal.command()
def check(folder: Folder) -> None:
    """Say how much of a journal is whole, and up to which fact. Nothing in DIR changes.

    Exit status 1 where it is damaged.

    Example: `rollmux journal check run`
    """
    from runtime.journal.check import check_journal

    outcome = check_journal(folder)
    typer.echo(f"{len(outcome.facts)} facts are whole; the last is {outcome.last}")
    if outcome.problem is not None:
        typer.echo(f"behind them: {outcome.problem}")
        raise typer.Exit(1)


@journal.command()
def audit(folder: Folder) -> None:
    """Check that a run lost and doubled nothing: jobs, iterations, nodes, placements and times, over kills and resumes.

    Prints a line for every problem, with the number of the property (docs/reference/chaos.md). Exit status 1 where there is one.

    Example: `rollmux journal audit run`
    """
    from runtime.journal.audit import audit as audit_facts
    from runtime.journal.write import JOURNAL, read_facts

    report = audit_facts(read_facts(folder / JOURNAL))
    for problem in report.problems:
        typer.echo(problem)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(report.jobs.values()).items())
    repeated = f"{report.iterations} iterations, {report.repeated} repeated after {report.restarts} restarts of jobs"
    typer.echo(f"{len(report.jobs)} jobs ({outcomes}), {repeated}, {report.relaunches} resumes: {len(report.problems)} problems")
    if report.problems:
        raise typer.Exit(1)
