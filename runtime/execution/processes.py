"""The processes of jobs, as the coordinator handles them: who starts, watches and ends them depends on the kind of job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.machine import Node


class Processes(Protocol):
    """Starts and ends them. `JobHandle.controller` is not None while a job has any."""

    def start(self, handle: JobHandle) -> None:
        """Start a job's processes on the nodes of its place, or let whoever has them know that it has one."""
        ...

    async def wait(self, handle: JobHandle) -> End:
        """Wait for the end of a job's processes, whatever it is."""
        ...

    async def kill(self, handle: JobHandle) -> None:
        """End all processes of a job, and wait until nothing that the job held is in their hands any more."""
        ...

    async def drop(self, handle: JobHandle) -> None:
        """What `wait` has waited for is over: let go of it, and of whatever the job has left behind."""
        ...

    async def close(self) -> None:
        """The run is over: end what jobs have left on this machine."""
        ...

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Those of some machines that are no longer there.

        Raises:
            InputError: this one is among them; the jobs on it go on with the run.
        """
        ...

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes of machines that have joined since, none of which is `known`."""
        ...
