"""Arguments and options that several commands share, and the output in a chosen format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from policies.commands.options import TableOrJson
from rollmux_env.report.loggers import MakeLogger

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
        help="The service's folder. (default: the service of $ROLLMUX_URL and $ROLLMUX_TOKEN; $ROLLMUX_SERVICE; rollmux-service)",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a service.")]
FolderOrBundle = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="The folder of a run or a service, or a file of `rollmux bundle`.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Format = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]


class RunOptions(NamedTuple):
    """Options of `rollmux run`.

    Attributes:
        policy: Name of the placement policy.
        dispatch: Name of the dispatch policy.
        seed: Seed of random policies.
        cached: Whether profiles from the cache are used.
        dry_run: Whether to profile the jobs and print placements without running them.
        compare: Whether to measure each job alone after its last iteration.
        out: Folder of the run, or None for a temporary one.
        address: Address of a Ray cluster, or None to start Ray on this machine.
        accepts_changes: Whether a resumed run continues although files that it depends on have changed.
        leave: Whether every job leaves its devices after each phase.
        make_logger: Function that makes the logger of a job from a folder, or None.
    """

    policy: str
    dispatch: str
    seed: int
    cached: bool
    dry_run: bool
    compare: bool
    out: Path | None
    address: str | None
    accepts_changes: bool = False
    leave: bool = False
    make_logger: MakeLogger | None = None
