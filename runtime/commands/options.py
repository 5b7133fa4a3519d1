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
        help="A placement policy by name, or `module:Class` of your own; else rollmux.",
        show_default=False,
    ),
]
DispatchName = Annotated[
    str | None,
    typer.Option(
        "--dispatch",
        metavar="NAME",
        help="Which waiting phase of a group is next: a dispatch policy by name; else round-robin.",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="A", help="Join the Ray cluster there; else this machine.", show_default=False),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of policies that draw at random.")]

POLICY, DISPATCH = "rollmux", "round-robin"  # where nothing else is said
