"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help="Placement policy: rollmux, consolidate, ... (docs/reference/policies.md) or `module:Class`. (default: rollmux)",
        show_default=False,
    ),
]
DispatchName = Annotated[
    str | None,
    typer.Option(
        "--dispatch",
        metavar="NAME",
        help="Dispatch policy: fifo, ... (docs/reference/dispatch.md). (default: round-robin)",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="ADDRESS", help="Ray cluster to join, HOST:PORT or auto. (default: start Ray on this machine)"
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of random policies.")]
