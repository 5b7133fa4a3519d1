"""Attached jobs have no processes of ours: what is started for them is a place, and what is ended a lease of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.machine import Node
from runtime.owners.http.lease import Stay
from runtime.owners.http.ledger import Ledger, wake


class AttachedProcesses:
    """See `runtime.execution.processes.Processes`. An owner learns of its job's place by a request, and of its end by the next one.

    Args:
        ledger: the leases.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def start(self, handle: JobHandle) -> None:
        """A job has a place: let its owner know, who may be waiting."""
        now_s = self.ledger.run.log.now()
        stay = handle.actors.controller = Stay(now_s)
        recalled = self.ledger.recalled.pop(handle.id, None)
        if recalled is not None:
            recalled.handle, recalled.stay, stay.lease = handle, stay, recalled
        handle.changed.ring()

    async def wait(self, handle: JobHandle) -> End:
        """Wait until the job leaves its place."""
        stay = self.ledger.stay(handle)
        assert stay is not None
        return await asyncio.shield(stay.over)

    async def kill(self, handle: JobHandle) -> None:
        """The lease of a job is over. Wait until what it holds is known to be free, or the run stops."""
        stay, run = self.ledger.stay(handle), self.ledger.run
        if stay is None:
            return
        lease, why = stay.lease, handle.ending.why.problem or handle.ending.why.outcome if handle.ending.why else "it is over"
        if lease is None:
            stay.free.set()
        elif not lease.ended:
            if lease.holds:
                lease.go("stop")
                lease.stops_s = run.log.now()
                wake(handle, why)
            else:
                self.ledger.end(lease, why, End("stopped"))
        stay.end(End("stopped"))
        stops = asyncio.ensure_future(self.ledger.stopped.wait())
        free = asyncio.ensure_future(stay.free.wait())
        try:
            await asyncio.wait((free, stops), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waits in (free, stops):
                waits.cancel()

    async def drop(self, handle: JobHandle) -> None:
        """Nothing is left of it."""

    async def close(self) -> None:
        """Leases outlive the coordinator."""

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Nobody watches the machines of owners."""
        return set()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes of owners are those of the cluster file."""
        return ()
