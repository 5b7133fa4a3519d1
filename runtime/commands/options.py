"""Options that several of these commands have."""

from __future__ import annotations

from typing import Annotated

import typer

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help="Which nodes a job gets: rollmux, consolidate, solo, ... (docs/policies.md), or `module:Class` of your own. "
        "(default: rollmux)",
        show_default=False,
    ),
]
DispatchName = Annotated[
    str | None,
    typer.Option(
        "--dispatch",
        metavar="NAME",
        help="Which waiting phase of a group is next: fifo, shortest-first, ... (docs/dispatch.md). (default: round-robin)",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="ADDRESS", help="Join a Ray cluster: HOST:PORT or auto. (default: start Ray on this machine)"
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of policies that draw at random.")]

POLICY, DISPATCH = "rollmux", "round-robin"  # where nothing else is said
