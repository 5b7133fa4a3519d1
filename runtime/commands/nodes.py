"""The commands `rollmux drain`, `undrain` and `clear`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.commands.options import At
from runtime.service.client import connected

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, as in `rollmux status`.")]


def drain(
    node: NodeName,
    starts: Annotated[
        str | None, typer.Option("--starts", metavar="TIME", help="Begin at this time, such as 2026-12-24T18:00. (default: now)")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", help="Begin so early that jobs which can leave it have left by this time."),
    ] = None,
    at: At = None,
) -> None:
    """Move the jobs of a node away at the end of their iteration, and place no other job on it.

    They move to other nodes, or wait in the queue until there are some. The node stays drained until `rollmux undrain`, even if the
    service restarts. Jobs that can neither move nor be parked stay until they end, also after a deadline. Times are in ISO 8601,
    local ones without an offset.

    Examples: `rollmux drain rollout-1`

    `rollmux drain rollout-1 --deadline 2026-12-24T18:00`
    """
    times = {key: _wall_s(key, text) for key, text in (("starts", starts), ("deadline", deadline)) if text is not None}
    query = "&".join(f"{key}_s={wall_s!r}" for key, wall_s in times.items())
    answer = _ask_about(node, f"drain?{query}" if query else "drain", at)
    if answer.get("starts_s") is not None:
        begins = datetime.fromtimestamp(answer["starts_s"]).astimezone().isoformat(timespec="seconds")
        typer.echo(f"{node} is drained from {begins} on; `rollmux undrain {node}` drops the plan")
        _say_staying(answer)
        return
    typer.echo(f"{node} is drained" if answer["drained"] else f"{node} is being drained")
    for key, what in (
        ("moves", "moves to other nodes at the end of its iteration"),
        ("queues", "waits in the queue from the end of its iteration on, until there is another place for it"),
    ):
        for job_id in answer[key]:
            typer.echo(f"{job_id}: {what}")
    _say_staying(answer)


def _say_staying(answer: Mapping[str, Any]) -> None:
    for job_id in answer.get("waits_for", ()):
        typer.echo(f"{job_id}: cannot move: the node is used until it ends")


def undrain(node: NodeName, at: At = None) -> None:
    """Use a drained node again, or drop the plan to drain it.

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


def _wall_s(key: str, text: str) -> float:
    """Return a time in seconds since 1970.

    Raises:
        InputError: If it is no time; one line.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"--{key} {one_line(text, 80)}: must be a time such as 2026-12-24T18:00") from None
