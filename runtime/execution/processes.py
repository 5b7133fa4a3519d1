"""The processes of jobs, as the coordinator handles them: who starts, watches and ends them depends on the kind of job."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from rollmux_env.errors import InputError
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.machine import Node


class Processes:
    """Starts and ends those of one kind. `handle.actors.controller` is not None while a job has any."""

    def start(self, handle: JobHandle) -> None:
        """Start a job's processes on the nodes of its place, or let whoever has them know that it has one."""
        raise NotImplementedError

    async def wait(self, handle: JobHandle) -> End:
        """Wait for the end of a job's processes, whatever it is."""
        raise NotImplementedError

    async def kill(self, handle: JobHandle) -> None:
        """End all processes of a job, and wait until nothing that the job held is in their hands any more."""
        raise NotImplementedError

    async def drop(self, handle: JobHandle) -> None:
        """What `wait` has waited for is over: let go of it, and of whatever the job has left behind."""

    async def close(self) -> None:
        """The run is over: end what jobs have left on this machine."""

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Those of some machines that are no longer there, as far as anybody looks.

        Raises:
            InputError: this one is among them; the jobs on it go on with the run.
        """
        return set()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes of machines that have joined since, none of which is `known`."""
        return ()


class ProcessesByKind:
    """Those of all jobs of a run.

    Args:
        own: of jobs with a task or a class; None where there is no Ray. attached: of jobs that their owners
            start. commands: of those that the service starts.
    """

    def __init__(self, own: Processes | None, attached: Processes, commands: Processes) -> None:
        self.has_own = own is not None
        self.own, self._attached, self._commands = own or Processes(), attached, commands

    def of(self, handle: JobHandle) -> Processes:
        """Those of the kind of a job."""
        if handle.spec.is_attached:
            return self._attached if handle.spec.attach else self._commands
        if not self.has_own:
            raise InputError(f"job {handle.id}: needs Ray, and this service was started without")
        return self.own

    async def close(self) -> None:
        """The run is over: end what jobs have left on this machine."""
        await asyncio.gather(*(one.close() for one in (self.own, self._attached, self._commands)))
