"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import TableOrJson

PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="NAME",
        help="Placement policy: rollmux, consolidate, ... (docs/reference/policies.md) or `module:Class`. (default: rollmux)",
    ),
]
DispatchName = Annotated[
    str | None,
    typer.Option(
        "--dispatch", metavar="NAME", help="Dispatch policy: fifo, ... (docs/reference/dispatch.md). (default: round-robin)"
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="ADDRESS", help="Ray cluster to join, HOST:PORT or auto. (default: start Ray on this machine)"
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of random policies.")]
At = Annotated[
    Path | None,
    typer.Option(
        "--at",
        metavar="DIR",
        help="The service's folder. (default: the service at $ROLLMUX_URL, else the folder $ROLLMUX_SERVICE, else rollmux-service)",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a service.")]
FolderOrBundle = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="The folder of a run or a service, or a file of `rollmux bundle`.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Format = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]
