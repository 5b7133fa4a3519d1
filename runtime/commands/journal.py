"""The command `rollmux journal`."""

from __future__ import annotations

from collections import Counter

import typer

from runtime.commands.options import FolderOrBundle
from runtime.journal.check import audit_parts, check_journal, explained
from runtime.journal.parts import read_parts
from runtime.journal.replay import joined, replay_journal
from runtime.report.bundle import folder_of_bundle

app = typer.Typer(no_args_is_help=True)


@app.callback()
def journal() -> None:
    """Check the journal of a run."""


@app.command()
def replay(folder: FolderOrBundle) -> None:
    """Feed a recorded run through the scheduler again and print each decision that differs.

    The exit status is 1 if there is a difference.

    Example: `rollmux journal replay run`
    """
    with folder_of_bundle(folder) as own, explained(own):
        every = [replay_journal(facts) for facts in joined([*read_parts(own).values()])]
    lines = [line for differences in every for line in differences.lines]
    for line in lines:
        typer.echo(line)
    placements, nodes, permits = (sum(getattr(one, name) for one in every) for name in ("placements", "nodes", "permits"))
    typer.echo(f"{placements} placements, {nodes} changes of nodes and {permits} permits compared: {len(lines)} differences")
    if lines:
        raise typer.Exit(1)


@app.command()
def check(folder: FolderOrBundle) -> None:
    """Print how many facts of a journal are intact, and which is the last one. Nothing in DIR changes.

    The exit status is 1 if the journal is damaged.

    Example: `rollmux journal check run`
    """
    with folder_of_bundle(folder) as own:
        outcome = check_journal(own)
    typer.echo(f"{len(outcome.facts)} facts are whole; the last is {outcome.last}")
    if outcome.problem is not None:
        typer.echo(f"behind them: {outcome.problem}")
        raise typer.Exit(1)


@app.command()
def audit(folder: FolderOrBundle) -> None:
    """Check that a run lost and duplicated nothing: jobs, iterations, nodes, placements and times, across kills and resumes.

    It prints a line for every problem, with the number of the property (docs/reference/chaos.md). The exit status is 1 if there is
    one.

    Example: `rollmux journal audit run`
    """
    with folder_of_bundle(folder) as own:
        report = audit_parts(read_parts(own))
    for problem in report.problems:
        typer.echo(problem)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(report.jobs.values()).items())
    repeated = f"{report.iterations} iterations, {report.repeated} repeated after {report.restarts} restarts of jobs"
    typer.echo(f"{len(report.jobs)} jobs ({outcomes}), {repeated}, {report.relaunches} resumes: {len(report.problems)} problems")
    if report.problems:
        raise typer.Exit(1)
