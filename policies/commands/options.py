"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file (docs/reference/scenario.md).")]
PolicyName = Annotated[
    str, typer.Option("--policy", "-p", metavar="NAME", help="Policy name (docs/reference/policies.md) or `module:Class`.")
]


MostPhases = Annotated[
    int | None,
    typer.Option(
        "--max-phases",
        min=1,
        metavar="N",
        help="Most phases of an event replay. (default: 20 million; 1 million where they are drawn)",
    ),
]
FailureRates = Annotated[
    str | None,
    typer.Option(
        "--failures",
        metavar="KEY=VALUE,...",
        help="What dies in event replays, as in job_h=24,node_h=3700,every=10 (docs/reference/failures.md).",
    ),
]


class Format(StrEnum):
    """Output formats of results."""

    table = "table"
    json = "json"
    csv = "csv"
    latex = "latex"


class Plots(StrEnum):
    """File formats of plots."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


Width = Annotated[
    float | None,
    typer.Option("--width", metavar="INCHES", help="Width of plots for a paper, as in 3.3 for a column. (default: for a screen)"),
]


class TableOrJson(StrEnum):
    """Output formats of commands without CSV."""

    table = "table"
    json = "json"


class Fidelity(StrEnum):
    """Level of detail of a replay: steady periods, or every phase."""

    fluid = "fluid"
    event = "event"
