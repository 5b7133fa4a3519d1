"""Options that commands of several packages share."""

from __future__ import annotations

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]


WorkloadSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Option of the workload, as in stays=fixed, or of a suite; may be repeated (`rollmux workload --help` lists keys).",
    ),
]
