"""Keys of job files that belong to jobs which the runtime does not run itself: attached ones, and commands."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rollmux_env.fields import Count, FileModel

Word = Annotated[str, Field(min_length=1, max_length=4096)]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class NodeNames(FileModel):
    """Nodes of the cluster by name."""

    rollout: Annotated[tuple[NodeName, ...], Field(strict=False)] = ()
    """Rollout nodes; none with one_device."""
    training: Annotated[tuple[NodeName, ...], Field(strict=False, min_length=1)]
    """Training nodes: all of a group's, or free ones."""


class ProfileSpec(FileModel):
    """How a job is measured that does not state its worst case."""

    iterations: Count = 3
    """Its first iterations, which count; it is planned with the longest seconds of its phases in them."""


def fill_attached(data: Any) -> Any:
    """What an entry of a job file says that runs elsewhere, where it does not say it: it is not movable, and where its nodes are
    named, it asks for so many.
    """
    if not isinstance(data, dict) or not (data.get("attach") or data.get("command")):
        return data
    filled = {"movable": False, **data}
    names = data.get("nodes")
    for pool in ("rollout", "training"):
        phase, named = data.get(pool, {}), names.get(pool) if isinstance(names, dict) else None
        if isinstance(phase, dict) and "nodes" not in phase and isinstance(named, list | tuple) and named:
            filled[pool] = {**phase, "nodes": len(named)}
    return filled
