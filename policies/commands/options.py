"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmux_env.cli import make_scenario

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario

File = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file (docs/reference/scenario.md).", show_default=False)]
PolicyName = Annotated[
    str,
    typer.Option("--policy", "-p", metavar="NAME", help="Policy name (docs/reference/policies.md) or `module:Class`."),
]


MostPhases = Annotated[
    int | None,
    typer.Option(
        "--max-phases",
        min=1,
        metavar="N",
        help="Most phases of an event replay. (default: 20 million; 1 million where they are drawn)",
        show_default=False,
    ),
]
FailureRates = Annotated[
    str | None,
    typer.Option(
        "--failures",
        metavar="KEY=VALUE,...",
        help="What dies in event replays, as in job_h=24,node_h=3700,every=10 (docs/reference/failures.md).",
        show_default=False,
    ),
]


class Format(StrEnum):
    """Output formats of results."""

    table = "table"
    json = "json"
    csv = "csv"


class BenchFormat(StrEnum):
    """Output formats of `rollmux bench`."""

    table = "table"
    json = "json"
    csv = "csv"
    latex = "latex"


class Plots(StrEnum):
    """File formats of plots."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class TableOrJson(StrEnum):
    """Output formats of commands without CSV."""

    table = "table"
    json = "json"


class Fidelity(StrEnum):
    """Level of detail of a replay: steady periods, or every phase."""

    fluid = "fluid"
    event = "event"


def find_scenario(target: str, seed: int, settings: Sequence[str]) -> Scenario:
    """Load the scenario of a file or an example, or generate a workload.

    Args:
        target: Path of a scenario file, name of an example, or name of a workload.
        seed: Seed of a workload. Files and examples are the same for every seed.
        settings: Settings of a workload as `KEY=VALUE`, as given to `--set`.

    Raises:
        InputError: There is no such file, example or workload, or settings are given with a file.
    """
    from rollmux_env.errors import InputError
    from rollmux_env.files import example_names
    from rollmux_env.scenario import load_scenario
    from rollmux_env.suggestions import did_you_mean
    from rollmux_env.workloads import WORKLOADS

    if target in WORKLOADS:
        return make_scenario(target, seed, settings)
    if Path(target).suffix == ".csv":
        raise InputError(f"{target}: a CSV file is a trace: `rollmux bench philly --set csv={target}` has its jobs")
    if not Path(target).suffix and not Path(target).exists() and target not in (names := example_names()):
        near = did_you_mean(target, [*WORKLOADS, *names])
        raise InputError(f"{target}: is no file, example or workload; workloads are {', '.join(WORKLOADS)}{near}")
    if settings:
        raise InputError(f"{target}: a scenario file takes no options of a workload (--set {settings[0]})")
    return load_scenario(target)
