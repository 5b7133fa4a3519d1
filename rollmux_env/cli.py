"""The commands `rollmux validate`, `schema`, `workload` and `examples`.

Heavy imports are inside the functions, so that `rollmux --help` is fast.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmux_env.errors import DEBUG

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario

Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
WorkloadSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Option of the workload, as in stays=fixed, or of a suite; may be repeated (`rollmux workload --help` lists keys).",
        show_default=False,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rollmux {version('rollmux')}")
        raise typer.Exit


def _before_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error too.")] = False,
) -> None:
    """Schedule RL post-training jobs on a rollout pool and a training pool.

    Start with `rollmux bench quickstart`, and with `rollmux doctor` before the first `rollmux run`.
    """
    if debug:
        os.environ[DEBUG] = "1"


shipped = typer.Typer(invoke_without_command=True)


def mount(app: typer.Typer) -> None:
    """Add the commands of this package, and the options of `rollmux` itself."""
    app.callback()(_before_commands)
    app.command(rich_help_panel="Scenario files")(validate)
    app.command(rich_help_panel="Scenario files")(schema)
    app.command(rich_help_panel="Scenario files")(workload)
    app.add_typer(shipped, name="examples", rich_help_panel="Scenario files")


def validate(file: Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file.", show_default=False)]) -> None:
    """Check a scenario file, and print its size and hash.

    Example: `rollmux validate examples/quickstart.yaml`
    """
    from rollmux_env.scenario import load_scenario

    scenario = load_scenario(file)
    arrivals_s = [job.arrival_s for job in scenario.jobs]
    jobs = f"{len(scenario.jobs)} job{'s' if len(scenario.jobs) > 1 else ''}"
    typer.echo(f"{file}: {jobs} arriving over {(max(arrivals_s) - min(arrivals_s)) / 3600:.1f} h, sha256 {scenario.sha256}")


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors.

    Example: `rollmux schema > scenario.schema.json`
    """
    from rollmux_env.report.results import to_json
    from rollmux_env.schema import scenario_schema

    typer.echo(to_json(scenario_schema()), nl=False)


def workload(
    name: Annotated[str, typer.Argument(metavar="NAME", help="production, mixed, ...; see docs/reference/workloads.md.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file, .json or .yaml.", show_default=False)],
    settings: WorkloadSettings = None,
    seed: Seed = 0,
) -> None:
    """Write a workload as a scenario file.

    Keys of --set (docs/reference/workloads.md has the defaults):

    jobs: number of jobs
    stays: `iterations`, fixed work, or `fixed`, fixed stays (the paper's accounting)
    slo: [LOW,HIGH], the range of SLOs
    max_group_size: maximum jobs in a group
    switches: true for warm and cold start times
    shapes: whether jobs may also run on half or twice their nodes (production)
    asynchronous: share of the jobs that are asynchronous, 0 to 1
    third_pool: whether jobs may also run on nodes of a third kind, A100 (production)
    assumptions: scaling, prices and rates that are not published: `ours`, `model`, or a file
    semantics: `paper` for the SLOs and training nodes that the paper's figures need
    csv, profile: trace of philly, and the profile of its jobs' phase times
    trace, phase_times, drift: files of the paper's authors (authors)
    virtual_cluster: use only this cluster's rows of the trace
    window_start_h, window_h: use only this window of the trace
    min_stay_h, max_stay_h: use only stays in this range

    Examples: `rollmux workload production --set stays=fixed --out stream.yaml`

    `rollmux workload philly --set csv=trace.csv --set virtual_cluster=6c71a0 --out philly.json`
    """
    from rollmux_env.workloads.text import write_scenario

    scenario = make_scenario(name, seed, settings or [])
    write_scenario(out, scenario)
    typer.echo(f"{out}: {len(scenario.jobs)} jobs, sha256 {scenario.sha256}")


@shipped.callback()
def examples(context: typer.Context) -> None:
    """List the examples that come with RollMux, and copy them.

    Commands find scenarios and job files among them by name, as in `rollmux bench quickstart`.

    Examples: `rollmux examples`, `rollmux examples copy own_job`
    """
    if context.invoked_subcommand is None:
        from rollmux_env.example_files import examples

        shown = examples()
        width = max(len(example.name) for example in shown)
        for is_found, heading in ((True, "Found by name:"), (False, "Code to copy:")):
            typer.echo(heading)
            for example in shown:
                if example.is_found == is_found:
                    typer.echo(f"  {example.name:{width}}  {example.about}")


@shipped.command()
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `rollmux examples` lists it.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the copies go.")] = Path(),
) -> None:
    """Copy the files of an example, to change them; existing files are not replaced.

    Example: `rollmux examples copy own_job`
    """
    from rollmux_env.example_files import copy_example

    for path in copy_example(name, folder):
        typer.echo(path)


def make_scenario(name: str, seed: int, settings: Iterable[str]) -> Scenario:
    """Generate a workload from values of `--set`.

    Args:
        name: Name of the workload.
        seed: Seed of its draws.
        settings: Texts `key=value`.

    Raises:
        InputError: If the workload is unknown, or does not support an option.
    """
    from rollmux_env.errors import InputError
    from rollmux_env.workloads import make_workload
    from rollmux_env.workloads.options import WorkloadOptions, parse_options

    try:
        return make_workload(name, parse_options(settings, seed))
    except InputError as error:
        of_option = re.split(r"\W", str(error))[0] in WorkloadOptions.__dataclass_fields__
        raise InputError(f"--set {error}" if of_option else str(error)) from None
