"""`rollmux drain` and `undrain`: which nodes a service uses."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.commands.jobs import At

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="As `rollmux status` names it.", show_default=False)]


def drain(node: NodeName, at: At = None) -> None:
    """Let the jobs of a node leave it at the end of their iteration, and no others come.

    They move to other nodes, or wait first in the queue until there are some. It lasts until `rollmux undrain`, over restarts too.

    Example: `rollmux drain rollout-1`
    """
    from runtime.service.client import connected

    with connected(at) as service:
        answer = service.drain(node)
    typer.echo(f"{node} is drained" if answer["drained"] else f"{node} is being drained")
    for key, what in (
        ("moves", "moves to other nodes at the end of its iteration"),
        ("queues", "will wait in the queue from the end of its iteration on: there is no other place for it now"),
        ("waits_for", "cannot move: the node is used until it ends"),
    ):
        for job_id in answer[key]:
            typer.echo(f"{job_id}: {what}")


def undrain(node: NodeName, at: At = None) -> None:
    """Let jobs come to a node again.

    Example: `rollmux undrain rollout-1`
    """
    from runtime.service.client import connected

    with connected(at) as service:
        service.undrain(node)
    typer.echo(f"{node} is used again")
