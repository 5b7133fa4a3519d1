"""Commands that read the folder of a run or a service: `compare`, `samples`, `export`, `bundle`, and `journal` with its checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import TableOrJson
from runtime.commands.options import At, Folder, FolderOrBundle, Format, JobName, print_as

journal = typer.Typer(no_args_is_help=True, help="Check the journal of a run.")


def compare(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder given to `rollmux run --out DIR`.")],
    format: Format = TableOrJson.table,
) -> None:
    """Compare a real run with the prediction of the simulator from its first iterations.

    Example: `rollmux compare run`
    """
    from runtime.compare import compare as compare_run
    from runtime.compare import comparison_table
    from runtime.journal.audit import explained
    from runtime.journal.write import read_run
    from runtime.service.address import check_run

    check_run(folder)
    with explained(folder):
        comparison = compare_run(read_run(folder))
    print_as(format, comparison, comparison_table(comparison))


def samples(
    job: JobName,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=1, help="Number of the iteration, from 1. (default: the last one)")
    ] = None,
    at: At = None,
) -> None:
    """Print some prompts of an iteration with their responses and rewards.

    With `--at DIR`, DIR may also be that of `rollmux run --out DIR`.

    Examples: `rollmux samples math`

    `rollmux samples math --iteration 1 --at run`
    """
    from rollmux_env.errors import InputError
    from runtime.samples import read_samples
    from runtime.service.address import folder_of

    by_iteration = read_samples(folder_of(at), job)
    first, last = min(by_iteration), max(by_iteration)
    wanted = last if iteration is None else iteration - 1
    if wanted not in by_iteration:
        raise InputError(f"--iteration {iteration}: there are no samples of it; there are some of {first + 1} to {last + 1}")
    typer.echo(f"iteration {wanted + 1}")
    for group in by_iteration[wanted]:
        typer.echo(f"\nprompt: {group.prompt}")
        for response, reward in zip(group.responses, group.rewards, strict=True):
            typer.echo(f"{reward:10.4g} | {response}")


def export(
    folder: Folder,
    job: Annotated[str, typer.Argument(help="Id of a built-in job.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="A new folder for the model.")],
) -> None:
    """Write the model that a job has trained, as a Hugging Face folder that transformers and vLLM load.

    It is the model of the job's last checkpoint. The run may still be in progress.

    Example: `rollmux export run math --to math-model`
    """
    from rollmux_env.errors import require
    from runtime.export import export_model

    require("run", "export")
    iterations = export_model(folder, job, to)
    typer.echo(f"{to}: the model of job {job} after {iterations} iterations")


def bundle(folder: Folder, out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new zip file.")]) -> None:
    """Write one file for a bug report: the journal, versions, the machine, and the last lines of the logs without secrets.

    `rollmux journal replay FILE`, `audit` and `check` read it as they read DIR.

    Example: `rollmux bundle run --out run.zip`
    """
    from runtime.report.bundle import write_bundle

    names = write_bundle(folder, out)
    typer.echo(f"{out}: {', '.join(names)}")
    typer.echo("the journal has the names of files and what job files say: look whether you may pass that on")


@journal.command()
def replay(folder: FolderOrBundle) -> None:
    """Feed a recorded run through the scheduler again and print each decision that differs.

    The exit status is 1 if there is a difference.

    Example: `rollmux journal replay run`
    """
    from runtime.journal.audit import explained
    from runtime.journal.replay import replay_journal
    from runtime.journal.write import JOURNAL, read_facts
    from runtime.report.bundle import folder_of_bundle

    with folder_of_bundle(folder) as own, explained(own):
        differences = replay_journal(read_facts(own / JOURNAL))
    for line in differences.lines:
        typer.echo(line)
    counts = f"{differences.placements} placements, {differences.nodes} changes of nodes and {differences.permits} permits"
    typer.echo(f"{counts} compared: {len(differences.lines)} differences")
    if differences.lines:
        raise typer.Exit(1)


@journal.command()
def check(folder: FolderOrBundle) -> None:
    """Print how many facts of a journal are intact, and which is the last one. Nothing in DIR changes.

    The exit status is 1 if the journal is damaged.

    Example: `rollmux journal check run`
    """
    from runtime.journal.audit import check_journal
    from runtime.report.bundle import folder_of_bundle

    with folder_of_bundle(folder) as own:
        outcome = check_journal(own)
    typer.echo(f"{len(outcome.facts)} facts are whole; the last is {outcome.last}")
    if outcome.problem is not None:
        typer.echo(f"behind them: {outcome.problem}")
        raise typer.Exit(1)


@journal.command()
def audit(folder: FolderOrBundle) -> None:
    """Check that a run lost and duplicated nothing: jobs, iterations, nodes, placements and times, across kills and resumes.

    It prints a line for every problem, with the number of the property (docs/reference/chaos.md). The exit status is 1 if there is
    one.

    Example: `rollmux journal audit run`
    """
    from runtime.journal.audit import audit as audit_facts
    from runtime.journal.write import JOURNAL, read_facts
    from runtime.report.bundle import folder_of_bundle

    with folder_of_bundle(folder) as own:
        report = audit_facts(read_facts(own / JOURNAL))
    for problem in report.problems:
        typer.echo(problem)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(report.jobs.values()).items())
    repeated = f"{report.iterations} iterations, {report.repeated} repeated after {report.restarts} restarts of jobs"
    typer.echo(f"{len(report.jobs)} jobs ({outcomes}), {repeated}, {report.relaunches} resumes: {len(report.problems)} problems")
    if report.problems:
        raise typer.Exit(1)
