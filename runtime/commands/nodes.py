"""The commands `rollmux drain`, `undrain` and `clear`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from runtime.commands.options import At
from runtime.service.client import connected

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, as in `rollmux status`.")]


def drain(node: NodeName, at: At = None) -> None:
    """Move the jobs of a node away at the end of their iteration, and place no other job on it.

    They move to other nodes, or wait in the queue until there are some. The node stays drained until `rollmux undrain`, even if the
    service restarts.

    Example: `rollmux drain rollout-1`
    """
    answer = _ask_about(node, "drain", at)
    typer.echo(f"{node} is drained" if answer["drained"] else f"{node} is being drained")
    for key, what in (
        ("moves", "moves to other nodes at the end of its iteration"),
        ("queues", "will wait in the queue from the end of its iteration on: there is no other place for it now"),
        ("waits_for", "cannot move: the node is used until it ends"),
    ):
        for job_id in answer[key]:
            typer.echo(f"{job_id}: {what}")


def undrain(node: NodeName, at: At = None) -> None:
    """Use a drained node again.

    Example: `rollmux undrain rollout-1`
    """
    _ask_about(node, "undrain", at)
    typer.echo(f"{node} is used again")


def clear(node: NodeName, at: At = None) -> None:
    """Declare that no process uses a suspect node any more, so that it can be granted again.

    A node is suspect if a job's lease on it was lost and it is unknown whether the job's processes have ended. Check that first.

    Example: `rollmux clear rollout-1`
    """
    jobs = _ask_about(node, "clear", at)["jobs"]
    typer.echo(f"{node} is free again; it was held by {', '.join(jobs)}")


def _ask_about(node: str, what: str, at: Path | None) -> Any:

    with connected(at) as service:
        return service.ask("POST", f"/v1/nodes/{quote(node, safe='')}/{what}")
