"""Calls of a job's workers: from the job's own process, and from workers that were given others."""

from __future__ import annotations

import contextlib
from typing import Any

import ray

from runtime.machine import Node
from runtime.phases import WorkerDied, WorkerError

BESIDE = "beside"  # of an actor's calls, those that do not wait for others


class Call:
    """A call of a worker that is under way; as an argument of another call it stands for its result."""

    def __init__(self, handle: Handle, reference: Any) -> None:
        self.handle = handle
        self.reference = reference


class Handle:
    """A worker, as the job sees it (see `runtime.phases.WorkerHandle`), or another worker that was given it."""

    def __init__(self, actor: Any, node: Node, target: str, where: str) -> None:
        self.actor = actor
        self.node = node
        self.target = target
        self.where = where  # what was being done when it was started

    def call(self, method: str, *arguments: Any) -> Call:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, Call) else argument for argument in arguments]
        return Call(self, self.actor.call.remote(method, *values))

    def beside(self, method: str, *arguments: Any) -> Call:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, Call) else argument for argument in arguments]
        return Call(self, self.actor.beside.options(concurrency_group=BESIDE).remote(method, *values))

    def close(self) -> None:
        """See `WorkerHandle`."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=10)
        ray.kill(self.actor)


def results(calls: Any) -> Any:
    """The results of calls, of one or of a list of them; see `RuntimeHook.wait`.

    Raises:
        WorkerError: one has failed, or its process has died; the message says which, where and why.
    """
    several = isinstance(calls, list | tuple)
    values = []
    for call in calls if several else (calls,):
        try:
            values.append(ray.get(call.reference))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if cause is None:
                raise
            raise cause from None
        except ray.exceptions.RayActorError as error:
            where = f"its process on {call.handle.node.name} ({call.handle.target})"
            if "creation task" in str(error):
                raise WorkerError(f"{where} could not be made: {_lines(error)[-1]}") from None
            raise WorkerDied(f"{where} has died{_how(error)}") from None
    return values if several else values[0]


def _how(error: Exception) -> str:
    """How a process ended, from what Ray says about it."""
    return next((f": {line}" for line in _lines(error) if "exit" in line or "killed" in line.lower()), "")


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]
