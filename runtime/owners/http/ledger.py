"""All leases of a run, what becomes durable of them, and how they end.

Of leases without a sign of life, and of nodes that lost ones held, it looks who still uses them, as far as that can be known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from rollmux_client import OutOfOrder

from rollmux_env.errors import Conflict, NotFound
from rollmux_env.validation_errors import one_line
from runtime.execution.job_handle import JobHandle
from runtime.execution.job_log import tell_of
from runtime.execution.messages import End, Stopped
from runtime.execution.run_state import RunState
from runtime.journal.facts import Attached, Freed, LeaseEnded, Suspected
from runtime.owners.http.lease import Lease, Stay, living

_REMEMBERED = 10_000  # leases that are over
_LOOKS_S = 1.0
_LATE_S = 1.0  # a look so late: this process was stopped or waited for its disk, and nobody could give a sign of life


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
        lease.names = lease.handle.names
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

    async def patrol(self) -> None:
        """Look every second, as long as the run lasts."""
        last_s = self.run.log.now()
        while True:
            await asyncio.sleep(_LOOKS_S)
            await self.run.written()
            now_s = self.run.log.now()
            late_s, last_s = now_s - last_s - _LOOKS_S, now_s
            if late_s > _LATE_S:
                for lease in self.leases.values():
                    lease.sign_s += late_s
            self.look()

    def look(self) -> None:
        """Give up leases that are lost, free what their owners do not use any more, and give unclaimed places to others."""
        run = self.run
        if run.stopping:
            return
        now_s, rules = run.log.now(), run.plan.leases
        for lease in [*self.leases.values()]:
            if lease.ended:
                self._free_unused(lease, now_s)
            elif not lease.requests and now_s - lease.sign_s > rules.ttl_s:
                self.lose(lease, f"its lease is lost: no sign of life for {rules.ttl_s:g} s")
            elif lease.stops_s is not None and now_s - lease.stops_s > rules.ttl_s:
                self.lose(lease, f"it was told to stop, and has not for {rules.ttl_s:g} s")
        for handle in [*run.handles.values()]:
            stay = self.stay(handle)
            if stay is None or stay.living is not None or not handle.lives or handle.spec.command is not None:
                continue
            if now_s - stay.since_s > rules.claim_s:
                run.lifecycle.park(handle, stay)

    def speak_for(self, lease: Lease, pids: Collection[int]) -> None:
        """The owner of a lost lease attaches again, and by that says that it uses nothing.

        Args:
            pids: its processes now.

        Raises:
            Conflict: processes of its lost lease are seen to live, and are none of these.
        """
        alive = [pid for pid in living(lease.owner) if pid not in pids]
        if alive:
            names = ", ".join(sorted(lease.suspects))
            raise Conflict(f"job {lease.handle.id}: process {alive[0]} of its last lease lives, and may use {names}; end it first")
        self.free(lease, lease.suspects, "its owner has attached again")

    def clear(self, node: str) -> tuple[str, ...]:
        """Somebody says that no lost lease uses a node.

        Returns:
            The jobs whose leases had held it.

        Raises:
            NotFound: no lost lease holds it.
        """
        suspects = [lease for lease in self.leases.values() if node in lease.suspects]
        if not suspects:
            raise NotFound(f"{one_line(node, 80)}: no lost lease holds it")
        for lease in suspects:
            self.free(lease, (node,), "somebody has said so")
        return tuple(lease.handle.id for lease in suspects)

    def suspects(self) -> dict[str, str]:
        """The nodes that lost leases may still use, by name, and their jobs."""
        return {name: lease.handle.id for lease in self.leases.values() for name in lease.suspects}

    def _free_unused(self, lease: Lease, now_s: float) -> None:
        """Free what a lost lease held, if it is known that nobody uses it."""
        rules = self.run.plan.leases
        if not lease.suspects:
            return
        if rules.grace_s is not None and now_s - lease.sign_s > rules.ttl_s + rules.grace_s:
            self.free(lease, lease.suspects, f"{rules.grace_s:g} s of grace are over")
        elif lease.owner.boot and any(one.started for one in lease.owner.processes) and not living(lease.owner):
            self.free(lease, lease.suspects, "its owner's processes have ended")


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
