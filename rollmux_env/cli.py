"""`rollmux validate`, `schema` and `workload`. Heavy imports are inside the commands, so that `rollmux --help` is fast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario

Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
_WORKLOAD = "Workload"


def _workload_options(
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Number of jobs.", rich_help_panel=_WORKLOAD, show_default=False)
    ] = None,
    stays: Annotated[
        str,
        typer.Option(
            "--stays",
            metavar="iterations|fixed",
            help="Give jobs fixed work, or a fixed stay (the paper's accounting).",
            rich_help_panel=_WORKLOAD,
        ),
    ] = "iterations",
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo", metavar="LOW,HIGH", help="Draw SLOs uniformly from this range.", rich_help_panel=_WORKLOAD, show_default=False
        ),
    ] = None,
    max_group_size: Annotated[
        int, typer.Option("--group-size", min=1, help="Maximum jobs per group.", rich_help_panel=_WORKLOAD)
    ] = 5,
    switches: Annotated[
        bool, typer.Option("--switches", help="Give jobs warm and cold start times.", rich_help_panel=_WORKLOAD)
    ] = False,
    semantics: Annotated[
        str,
        typer.Option(
            "--semantics",
            metavar="default|paper",
            help="`paper`: use the SLOs and training nodes that the paper's reported figures need.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = "default",
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Phase times for the jobs of a trace.", rich_help_panel=_WORKLOAD)
    ] = "mixed",
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="The trace, for `philly`.", rich_help_panel=_WORKLOAD, show_default=False),
    ] = None,
    virtual_cluster: Annotated[
        str | None,
        typer.Option(
            "--virtual-cluster",
            metavar="NAME",
            help="Use only this cluster's rows of the trace.",
            rich_help_panel=_WORKLOAD,
            show_default=False,
        ),
    ] = None,
    window_start_h: Annotated[
        float, typer.Option("--window-start", metavar="HOURS", help="Start of the window in the trace.", rich_help_panel=_WORKLOAD)
    ] = 0.0,
    window_h: Annotated[
        float | None,
        typer.Option(
            "--window", metavar="HOURS", help="Length of the window in the trace.", rich_help_panel=_WORKLOAD, show_default=False
        ),
    ] = None,
    min_stay_h: Annotated[
        float, typer.Option("--min-stay", metavar="HOURS", help="Shortest stay to use from the trace.", rich_help_panel=_WORKLOAD)
    ] = 0.0,
    max_stay_h: Annotated[
        float | None,
        typer.Option(
            "--max-stay", metavar="HOURS", help="Longest stay to use from the trace.", rich_help_panel=_WORKLOAD, show_default=False
        ),
    ] = None,
) -> None:
    """The options that `with_workload_options` adds to a command; names are those of `WorkloadOptions`."""


def with_workload_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of workloads; it gets them as one mapping, `workload`, of those that the user set."""
    added = inspect.signature(_workload_options, eval_str=True).parameters
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "workload"]

    @wraps(command)
    def taking_options(**given: Any) -> None:
        workload = {name: given.pop(name) for name in added}
        command(**given, workload={name: value for name, value in workload.items() if value != added[name].default})

    taking_options.__signature__ = inspect.Signature([*own, *added.values()])  # type: ignore[attr-defined]
    return taking_options


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rollmux {version('rollmux')}")
        raise typer.Exit


def _before_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedule RL post-training jobs on a rollout pool and a training pool.

    Start with `rollmux bench examples/quickstart.yaml`, and with `rollmux doctor` before the first `rollmux run`.
    """


def mount(app: typer.Typer) -> None:
    """Add the commands of this package, and the options of `rollmux` itself."""
    app.callback()(_before_commands)
    app.command(rich_help_panel="Scenario files")(validate)
    app.command(rich_help_panel="Scenario files")(schema)
    app.command(rich_help_panel="Scenario files")(with_workload_options(workload))


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
    workload: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file, .json or .yaml.", show_default=False)],
    seed: Seed = 0,
) -> None:
    """Write a workload as a scenario file.

    Examples: `rollmux workload production --stays fixed --out stream.yaml`

    `rollmux workload philly --csv trace.csv --virtual-cluster 6c71a0 --out philly.json`
    """
    from rollmux_env.workloads.text import write_scenario

    scenario = make_scenario(name, seed, workload)
    write_scenario(out, scenario)
    typer.echo(f"{out}: {len(scenario.jobs)} jobs, sha256 {scenario.sha256}")


def make_scenario(name: str, seed: int, options: dict[str, Any]) -> Scenario:
    """A workload from the command's options.

    Raises:
        InputError: an unknown workload, or options that it does not take; one line.
    """
    from rollmux_env.errors import InputError
    from rollmux_env.workloads import make_workload
    from rollmux_env.workloads.options import WorkloadOptions

    chosen = dict(options)
    if "slo" in chosen:
        try:
            chosen["slo"] = tuple(float(bound) for bound in chosen["slo"].split(","))
        except ValueError:
            raise InputError(f"--slo {chosen['slo']}: must be two numbers, as in 1,2") from None
    try:
        return make_workload(name, WorkloadOptions(seed=seed, **chosen))
    except InputError as error:
        field, colon, problem = str(error).partition(": ")
        raise InputError(f"{spelled(field)}{colon}{problem}") from None


def spelled(name: str) -> str:
    """An option of workloads as the user writes it: `--window` for `window_h`; what is none of them as it is."""
    options = inspect.signature(_workload_options, eval_str=True).parameters
    return str(options[name].annotation.__metadata__[0].default) if name in options else name  # typer: of Annotated, the spelling
