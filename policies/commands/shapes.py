"""The command `rollmux shapes`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from policies.commands.options import File
from rollmux_env.errors import InputError
from rollmux_env.report.job_shapes import shapes_report, shapes_tables, shapes_yaml
from rollmux_env.report.results import to_json
from rollmux_env.report.tables import show
from rollmux_env.scenario import load_scenario
from rollmux_env.timing.shapes import shapes_of
from rollmux_env.validation_errors import not_one_of


class ShapesFormat(StrEnum):
    """Output formats of `rollmux shapes`."""

    table = "table"
    json = "json"
    yaml = "yaml"


def shapes(
    file: File,
    job: Annotated[str | None, typer.Option("--job", "-j", metavar="ID", help="Only this job. (default: all with a model)")] = None,
    most_nodes: Annotated[int, typer.Option("--max-nodes", min=1, max=64, help="Largest number of nodes of a phase.")] = 4,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", metavar="NAME", help="Pool that phases may use beside their own; can be repeated.")
    ] = None,
    format: Annotated[
        ShapesFormat, typer.Option("--format", help="Output format; yaml is the list `shapes` of a scenario file.")
    ] = ShapesFormat.table,
) -> None:
    """Print how long the phases of jobs with a model take on other numbers of nodes, and what that costs.

    Example: `rollmux shapes examples/models.yaml --job math-7b`
    """
    scenario = load_scenario(file)
    chosen = [one for one in scenario.jobs if (one.model is not None if job is None else one.id == job)]
    if not chosen:
        if job is not None:
            raise InputError(f"--job: {not_one_of(job, [one.id for one in scenario.jobs])}")
        raise InputError(f"{file}: no job has a model, from which the seconds of other shapes could be predicted")
    every = [shapes_of(one, scenario.cluster, most_nodes, pool or [], file.parent) for one in chosen]
    if format is ShapesFormat.json:
        typer.echo(to_json([shapes_report(one) for one in every]), nl=False)
    elif format is ShapesFormat.yaml:
        typer.echo(shapes_yaml(every), nl=False)
    else:
        show(*(shapes_tables(one) for one in every))
