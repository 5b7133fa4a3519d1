"""All leases of a run, what becomes durable of them, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from rollmux_client import OutOfOrder

from runtime.execution.job_handle import JobHandle
from runtime.execution.job_log import tell_of
from runtime.execution.messages import End, Stopped
from runtime.execution.run_state import RunState
from runtime.journal.facts import Attached, Freed, LeaseEnded, Suspected
from runtime.owners.http.lease import Lease, Stay
from runtime.refusals import Conflict, NotFound

_REMEMBERED = 10_000  # leases that are over


class Ledger:
    """The leases of a run.

    Args:
        run: whose.

    Attributes:
        leases: by id, those that have ended lately among them. recalled: by job, leases of a run that goes on, until they have
            their place again. stopped: the run stops. suspected: by job, leases that were lost, and whose nodes may still be in
            use.
    """

    def __init__(self, run: RunState) -> None:
        self.run = run
        self.leases: dict[str, Lease] = {}
        self.recalled: dict[str, Lease] = {}
        self.stopped = asyncio.Event()
        self.suspected: dict[str, Lease] = {}
        self._blocks: set[str] = set()
        self._flushes: asyncio.Future[None] | None = None

    def lease(self, lease_id: str) -> Lease:
        """A lease by its id.

        Raises:
            NotFound: there is none, or it ended long ago.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            raise NotFound("there is no such lease; attach to the job again")
        return lease

    def stay(self, handle: JobHandle) -> Stay | None:
        """A job's time in the place that it has; None where it has none."""
        return handle.actors.controller if isinstance(handle.actors.controller, Stay) else None

    async def durable(self) -> None:
        """Wait until all that was written down is on the disk. Those who wait in the same turn of the loop share one write."""
        if self._flushes is None:
            self._flushes = asyncio.ensure_future(self._flush())
        await asyncio.shield(self._flushes)
        await self.run.written()

    async def _flush(self) -> None:
        await asyncio.sleep(0)
        self._flushes = None
        self.run.log.flush()

    @contextlib.contextmanager
    def sign(self, lease: Lease) -> Iterator[None]:
        """An open request keeps a lease alive. What it cannot ask for now is a `Conflict`."""
        lease.sign_s = self.run.log.now()
        lease.requests += 1
        try:
            yield
        except OutOfOrder as wrong:
            raise Conflict(f"job {lease.handle.id}: {wrong}") from None
        finally:
            lease.requests -= 1
            lease.sign_s = self.run.log.now()

    def add(self, lease: Lease) -> None:
        """An owner has a lease."""
        self.leases[lease.id] = lease
        lease.stay.lease = lease
        lease.names = frozenset(node.name for node in lease.handle.nodes_of("sync"))
        self.write_down(lease)
        if len(self.leases) > _REMEMBERED:
            over = [other for other in self.leases.values() if other.ended and not other.suspects]
            for other in over[: max(0, len(over) - _REMEMBERED)]:
                del self.leases[other.id]

    def write_down(self, lease: Lease) -> None:
        """What is known of a lease's owner is in the journal."""
        now_s, job_id = self.run.log.now(), lease.handle.id
        names = tuple(node.name for node in lease.handle.nodes_of("sync"))
        self.run.log.write(Attached(now_s, job_id, lease.id, lease.owner.host, lease.owner.boot, lease.owner.processes, names))

    def end(self, lease: Lease, why: str, end: End | None, done: bool = False) -> None:
        """A lease is over, and its owner uses nothing any more.

        Args:
            end: of the stay; None: another lease of it may follow.
        """
        self._over(lease, "finish" if done else "leave", why)
        self.run.log.write(LeaseEnded(self.run.log.now(), lease.handle.id, lease.id, done, why))
        if end is not None:
            lease.stay.free.set()
            lease.stay.end(end)

    def lose(self, lease: Lease, why: str) -> None:
        """A lease is over, and nobody knows whether its owner still uses what it held."""
        now_s, job_id = self.run.log.now(), lease.handle.id
        facts: list[Any] = [LeaseEnded(now_s, job_id, lease.id, False, why)]
        if lease.holds:
            names = tuple(dict.fromkeys(node.name for phase in lease.turns.granted for node in lease.handle.nodes_of(phase)))
            lease.suspects = set(names)
            self.suspected[job_id] = lease
            facts.append(Suspected(now_s, job_id, lease.id, names))
            self.run.log.say(f"{job_id}: {why}; {', '.join(names)} may still be in use, and is granted to nobody")
        else:
            lease.stay.free.set()
            self.run.log.say(f"{job_id}: {why}")
        self._over(lease, "lose", why)
        if not lease.suspects:
            lease.go("free")
        self.run.log.write(*facts)
        lease.stay.end(End("died", "step", why))

    def free(self, lease: Lease, nodes: Iterable[str], why: str) -> None:
        """Nodes that a lost lease held are not used any more."""
        names = tuple(sorted(lease.suspects & {*nodes}))
        if not names:
            return
        self.run.log.write(Freed(self.run.log.now(), lease.handle.id, lease.id, names, why))
        self.run.log.say(f"{lease.handle.id}: {', '.join(names)} is free again: {why}")
        lease.suspects -= {*names}
        if not lease.suspects:
            lease.go("free")
            self.suspected.pop(lease.handle.id, None)
            lease.stay.free.set()
            self._unblock(lease)

    def block(self, lease: Lease) -> None:
        """A lost lease holds nodes that the scheduler cannot know as its own: nothing is granted until they are free."""
        self._blocks.add(lease.id)
        self.run.scheduler.stopped = True
        names = ", ".join(sorted(lease.suspects))
        self.run.log.say(f"{lease.handle.id}: nothing is granted until it is known that it does not use {names} any more")

    def _unblock(self, lease: Lease) -> None:
        if lease.id in self._blocks:
            self._blocks.discard(lease.id)
            if not self._blocks and not self.run.stopping:
                self.run.scheduler.stopped = False
                self.run.tell()

    def _over(self, lease: Lease, event: str, why: str) -> None:
        lease.go(event, why)
        tell_of(self.run.plan.folder, lease.handle.id, f"detached: {why}")
        wake(lease.handle, why)


def wake(handle: JobHandle, why: str) -> None:
    """Let nobody wait for a permit of a job any more."""
    handle.refuse(Stopped(why))
    handle.changed.ring()
    for waits in (*handle.permits.waits.values(), handle.actors.order):
        if waits is not None and waits.done() and not waits.cancelled():
            waits.exception()  # nobody else may ask for it


def described(handle: JobHandle) -> dict[str, list[dict[str, Any]]]:
    """The nodes of a job, as its owner is told of them."""
    return {
        pool: [
            {"name": node.name, "host": node.host or node.machine, "gpus": [*node.gpus], "cores": [*node.cores]} for node in nodes
        ]
        for pool, nodes in handle.place.nodes.items()
    }
