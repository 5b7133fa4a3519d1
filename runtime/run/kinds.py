"""The processes of jobs by the kind of job: on Ray, of an owner elsewhere, or a command of the service's own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from rollmux_env.errors import InputError
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.execution.processes import Processes
from runtime.machine import Node
from runtime.owners.http.commands import CommandProcesses
from runtime.owners.http.ledger import Ledger
from runtime.owners.http.processes import AttachedProcesses


class ProcessesByKind:
    """Hands every job to those who know its kind; see `runtime.execution.processes.Processes`.

    Args:
        own: of jobs with a task or a class; None where there is no Ray. folder: of the run. ledger: of leases.

    Attributes:
        attached: of jobs that their owners start. commands: of those that the service starts.
    """

    def __init__(self, own: Processes | None, folder: str, ledger: Ledger) -> None:
        self._own = own
        self.attached = AttachedProcesses(ledger)
        self.commands = CommandProcesses(folder, self.attached, ledger)

    @property
    def has_own(self) -> bool:
        """Whether jobs with a task or a class can be run."""
        return self._own is not None

    def of(self, handle: JobHandle) -> Processes:
        """Those of a job."""
        if handle.spec.is_attached:
            return self.attached if handle.spec.attach else self.commands
        if self._own is None:
            raise InputError(f"job {handle.id}: needs Ray, and this service was started without")
        return self._own

    def start(self, handle: JobHandle) -> None:
        self.of(handle).start(handle)

    async def wait(self, handle: JobHandle) -> End:
        return await self.of(handle).wait(handle)

    async def kill(self, handle: JobHandle) -> None:
        await self.of(handle).kill(handle)

    async def drop(self, handle: JobHandle) -> None:
        await self.of(handle).drop(handle)

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in (self._own, self.attached, self.commands) if one is not None))

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        return set() if self._own is None else await self._own.dead_machines(machines)

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        return () if self._own is None else await self._own.joined_nodes(known)
