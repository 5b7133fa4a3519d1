"""Leases that owners hold of jobs' placements. A lease follows the facts that are written of it, as recall from a journal does.

For nodes of lost leases, the ledger looks for processes that still use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any

from rollmux_protocol import ATTACHMENT, OutOfOrder, Turns, following

from rollmux_env.errors import Conflict, NotFound
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_loop import RunLoop
from runtime.jobside.messages import JobEnd, Stopped
from runtime.journal.facts import LeaseEnded, NodesFreed, NodesSuspected, OwnerAttached, OwnerProcess
from runtime.journal.leases import LeaseFact, LeaseRecord
from runtime.owners.http.carriers import carriers_of
from runtime.owners.http.owner_processes import MOST_PROCESSES, identified, is_known, is_seen, living, own_processes
from runtime.owners.protocol import turns_of

_REMEMBERED = 10_000  # most leases that are kept after their end, for late requests


@dataclass(eq=False)
class AttachedPlacement:
    """One period of an attached job in one placement.

    Attributes:
        unclaimed_since_s: Time since which no owner has had a lease of the placement, in seconds of the run's clock.
        lease: Last lease of the placement, or None.
        over: Future of the reason why the placement ends.
        free: Event that is set when no process uses the nodes of the lease any more.
    """

    unclaimed_since_s: float
    lease: Lease | None = None
    over: asyncio.Future[JobEnd] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def active_lease(self) -> Lease | None:
        """The current lease if it is active, else None."""
        return None if self.lease is None or self.lease.is_over else self.lease

    def unclaim(self, now_s: float) -> None:
        """Let the time begin in which an owner has to attach."""
        self.unclaimed_since_s = now_s

    def end(self, end: JobEnd) -> None:
        """End the placement, unless it has ended."""
        if not self.over.done():
            self.over.set_result(end)


@dataclass(eq=False)
class Lease:
    """An owner's right to act for a job in the placement that the job had when the owner attached.

    Attributes:
        record: State of the lease that a restarted service has from the journal.
        handle: Job of the lease.
        placement: Period in the placement.
        last_heartbeat_s: Time of the last heartbeat or request, in seconds of the run's clock.
        requests: Number of open requests.
        metrics_warned: Whether the job's log says that a metric of the owner is left out.
        state: State of the owner in `rollmux_protocol.ATTACHMENT`.
        stop_requested_s: Time at which the owner was asked to stop, or None.
        processes_lock: Lock that is held while a heartbeat looks for the owner's processes.
    """

    record: LeaseRecord
    handle: JobHandle
    placement: AttachedPlacement
    last_heartbeat_s: float
    requests: int = 0
    metrics_warned: bool = False
    state: str = field(default_factory=lambda: following(ATTACHMENT, "away", "attach"))
    stop_requested_s: float | None = None
    processes_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.record.end is not None:
            self.apply_event(_event_of(self.record.end))

    @property
    def owner(self) -> OwnerAttached:
        """Owner, its processes and the names of its nodes, as recorded in the journal."""
        return self.record.owner

    @property
    def turns(self) -> Turns:
        """Progress of the owner, and the phases that it has asked for or been granted."""
        return self.record.turns

    @property
    def id(self) -> str:
        """Identifier that the owner sends with its requests."""
        return self.owner.lease

    @property
    def is_over(self) -> bool:
        """Whether the lease has ended or was lost."""
        return self.record.end is not None

    @property
    def why_over(self) -> str:
        """Reason why the lease is over, or an empty string while it is active."""
        return "" if self.record.end is None else self.record.end.why

    @property
    def is_lost(self) -> bool:
        """Whether the lease was lost; its owner has to end at once, even if its nodes are free by then."""
        return self.record.end is not None and self.record.end.lost

    @property
    def suspect_nodes(self) -> Set[str]:
        """Names of the nodes that the lease held when it was lost and that may still be in use."""
        return self.record.suspects

    @property
    def has_grants(self) -> bool:
        """Whether the owner has been granted phases, and may be using nodes."""
        return bool(self.turns.granted)

    @property
    def must_move(self) -> bool:
        """Whether the owner has to leave this placement for another one."""
        return self.state == "to move"

    @property
    def is_elsewhere(self) -> bool:
        """Whether the job's current placement is another one, whose permits are not for this owner."""
        return {*self.owner.nodes} != self.handle.place.names

    @property
    def is_awaited(self) -> bool:
        """Whether the owner has to go to the job's current placement and has begun nothing that it would lose."""
        begun = self.turns.open or self.turns.rollouts > self.turns.done
        return self.must_move and self.is_elsewhere and self.handle.life.is_alive and not begun

    def apply_event(self, event: str) -> None:
        """Change the state of the owner as `rollmux_protocol.ATTACHMENT` says."""
        self.state = following(ATTACHMENT, self.state, event)

    def follow(self, *facts: LeaseFact) -> None:
        """Change as facts say that are written to the journal."""
        for fact in facts:
            if isinstance(fact, LeaseEnded):
                self.apply_event(_event_of(fact))
            self.record.follow(fact)

    def hear(self, at_s: float) -> None:
        """Record a sign of life of the owner."""
        self.last_heartbeat_s = at_s

    def ask_to_stop(self, now_s: float) -> None:
        """Let the owner end its phases and itself."""
        self.apply_event("stop")
        self.stop_requested_s = now_s

    def settle(self) -> None:
        """Record that the owner is away if it was lost and uses no node."""
        if self.state == "lost" and not self.record.suspects:
            self.apply_event("free")

    def enter(self, handle: JobHandle, placement: AttachedPlacement) -> None:
        """Belong to a placement that the job has got without its owner."""
        self.handle, self.placement, placement.lease = handle, placement, self

    def part(self) -> None:
        """Belong no longer to the job's placement, whose next lease is another owner's."""
        self.placement.lease, self.placement = None, AttachedPlacement(self.placement.unclaimed_since_s)

    def set_metrics_warned(self) -> None:
        """Record that the job's log says that a metric of the owner is left out."""
        self.metrics_warned = True


def _event_of(end: LeaseEnded) -> str:
    return "lose" if end.lost else "finish" if end.done else "leave"


class Ledger:
    """The leases of a run.

    Args:
        run: The run.

    Attributes:
        leases: Leases by id, including those that ended recently.
        recalled: Leases of a resumed run by job id, until their jobs have a placement again or the leases are over.
        stopped: Event that is set when the run stops.
        suspected: Lost leases whose nodes may still be in use, by job id.
    """

    def __init__(self, run: RunLoop) -> None:
        self.run = run
        self.leases: dict[str, Lease] = {}
        self.recalled: dict[str, Lease] = {}
        self.stopped = asyncio.Event()
        self.suspected: dict[str, Lease] = {}
        self._blocks: set[str] = set()

    def lease(self, lease_id: str) -> Lease:
        """Return a lease by its id.

        Raises:
            NotFound: If there is none, or it ended long ago.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            raise NotFound("there is no such lease; attach to the job again")
        return lease

    def last_of(self, job_id: str) -> Lease | None:
        """Return the last lease of a job, or None if it has had none that is remembered."""
        return next((lease for lease in reversed(self.leases.values()) if lease.handle.id == job_id), None)

    def placement_of(self, handle: JobHandle) -> AttachedPlacement | None:
        """Return a job's period in its current placement, or None if it has no placement."""
        return handle.processes.controller if isinstance(handle.processes.controller, AttachedPlacement) else None

    @contextlib.contextmanager
    def keep_alive(self, lease: Lease) -> Iterator[None]:
        """Keep a lease alive for the time of a request, and turn `OutOfOrder` into `Conflict`.

        Args:
            lease: Lease of the request.

        Raises:
            Conflict: If the owner asks for what cannot be next; one line.
        """
        lease.hear(self.run.log.now())
        lease.requests += 1
        try:
            yield
        except OutOfOrder as wrong:
            raise Conflict(f"job {lease.handle.id}: {wrong}") from None
        finally:
            lease.requests -= 1
            lease.hear(self.run.log.now())

    def write(self, lease: Lease, *facts: LeaseFact) -> None:
        """Write facts of a lease to the journal, and let the lease follow them."""
        self.run.log.write(*facts)
        lease.follow(*facts)

    def attach(
        self, handle: JobHandle, placement: AttachedPlacement, host: str, boot: str, owner_processes: tuple[OwnerProcess, ...]
    ) -> Lease:
        """Give an owner a lease of its job's placement, and forget the oldest leases that are over.

        Args:
            handle: The job.
            placement: Period of the job in its placement.
            host: Name of the machine on which the owner runs, or an empty string.
            boot: Scope of the ids of its processes, as `shared_pid_space` returns it.
            owner_processes: Processes of the owner that are known so far.
        """
        now_s, names = self.run.log.now(), tuple(node.name for node in handle.place.nodes_of("sync"))
        owner = OwnerAttached(now_s, handle.id, secrets.token_hex(16), host, boot, owner_processes, names)
        lease = Lease(LeaseRecord(owner, turns_of(handle, handle.iteration)), handle, placement, now_s)
        self.leases[lease.id] = placement.lease = lease
        self.run.log.write(owner)
        if len(self.leases) > _REMEMBERED:
            over = [other for other in self.leases.values() if other.is_over and not other.suspect_nodes]
            for other in over[: max(0, len(over) - _REMEMBERED)]:
                del self.leases[other.id]
        return lease

    def end(self, lease: Lease, why: str, end: JobEnd | None, done: bool = False) -> None:
        """End a lease whose owner uses nothing any more.

        Args:
            lease: The lease.
            why: Reason, for the log and the journal.
            end: Reason why the placement ends, or None if another lease of it may follow.
            done: Whether the job is done.
        """
        self._over(lease, LeaseEnded(self.run.log.now(), lease.handle.id, lease.id, done, why))
        if end is not None:
            lease.placement.free.set()
            lease.placement.end(end)

    def lose(self, lease: Lease, why: str, remaining: Collection[int] = ()) -> None:
        """End a lease whose owner may still use its nodes. They become suspect as `suspect` says.

        Args:
            lease: The lease.
            why: Reason, for the log and the journal.
            remaining: Ids of processes of the job on this machine that cannot be ended.
        """
        self._over(lease, LeaseEnded(self.run.log.now(), lease.handle.id, lease.id, False, why, lost=True))
        self.run.log.say(f"{lease.handle.id}: {why}")
        self.suspect(lease, remaining)
        if not lease.suspect_nodes:
            lease.placement.free.set()
            lease.settle()
        lease.placement.end(JobEnd("died", "step", why))

    def suspect(self, lease: Lease, remaining: Collection[int] = ()) -> None:
        """Mark the nodes that the owner of an ended lease may still use: those of its phases; all if it holds none and lives here.

        The job keeps its place until they are free.

        Args:
            lease: The lease, whose placement has not ended.
            remaining: Ids of processes of the job on this machine that are known to live.
        """
        job_id, place, has_grants = lease.handle.id, lease.handle.place, lease.has_grants
        if remaining and is_seen(lease.owner):
            self._name(lease, identified(sorted({*remaining, *living(lease.owner)})))
        alive = [] if lease.is_elsewhere else sorted({*remaining, *self.using(lease)})
        names = {node.name for phase in lease.turns.granted for node in place.nodes_of(phase)} or {*(place.names if alive else ())}
        if names <= lease.suspect_nodes:
            return
        self.write(lease, NodesSuspected(self.run.log.now(), job_id, lease.id, tuple(sorted(names))))
        self.suspected[job_id] = lease
        lease.placement.free.clear()
        by = f" by process {', '.join(map(str, alive))}" if alive else ""
        until_then = "is granted to no job" if has_grants else "its place is kept"
        self.run.log.say(f"{job_id}: {', '.join(sorted(names))} may still be in use{by}, and {until_then}")

    def free(self, lease: Lease, nodes: Iterable[str], why: str) -> None:
        """Free suspect nodes of a lost lease.

        Args:
            lease: The lease.
            nodes: Names of nodes that are not used any more.
            why: Reason, for the log and the journal.
        """
        names = tuple(sorted(lease.suspect_nodes & {*nodes}))
        if not names:
            return
        self.write(lease, NodesFreed(self.run.log.now(), lease.handle.id, lease.id, names, why))
        self.run.log.say(f"{lease.handle.id}: {', '.join(names)} is free again: {why}")
        lease.settle()
        if not lease.suspect_nodes:
            self.suspected.pop(lease.handle.id, None)
            lease.placement.free.set()
            self._unblock(lease)

    def release(self, lease: Lease, phase: HoldName) -> None:
        """Record that a phase of a lost lease has ended. The last one frees the nodes."""
        lease.turns.drop(phase)
        if not lease.has_grants:
            self.free(lease, lease.suspect_nodes, "its owner has released it")

    def block(self, lease: Lease) -> None:
        """Stop all grants until the nodes of a lost lease are free, because the scheduler does not know that it holds them."""
        self._blocks.add(lease.id)
        self.run.scheduler.members.stopped = True
        names = ", ".join(sorted(lease.suspect_nodes))
        self.run.log.say(f"{lease.handle.id}: no permit is granted until it is known that the job does not use {names} any more")

    def _unblock(self, lease: Lease) -> None:
        if lease.id in self._blocks:
            self._blocks.discard(lease.id)
            if not self._blocks and not self.run.stopping:
                self.run.scheduler.members.stopped = False
                self.run.apply(Consequences(), asks=True)

    def _over(self, lease: Lease, end: LeaseEnded) -> None:
        self.write(lease, end)
        self.recalled.pop(lease.handle.id, None)
        self.run.log.write_job_log(lease.handle.id, f"detached: {end.why}")
        wake(lease.handle, end.why)

    def free_for_attaching(self, lease: Lease, pids: Collection[int]) -> float:
        """Free the nodes of a lost lease whose owner attaches again, because an owner that attaches uses nothing.

        Args:
            lease: The lost lease.
            pids: Process ids of the owner that attaches.

        Returns:
            Seconds until that can be believed, or 0 if the nodes are free. The former owner may still believe its lease active if
            its clock is slow, and the process that attaches may be another one.

        Raises:
            Conflict: If other processes of the lost lease are seen to live; one line.
        """
        alive = [pid for pid in self.using(lease) if pid not in pids]
        if alive:
            names = ", ".join(sorted(lease.suspect_nodes))
            raise Conflict(f"job {lease.handle.id}: process {alive[0]} of its last lease lives, and may use {names}; end it first")
        left_s = lease.last_heartbeat_s + self.run.plan.leases.fenced_s - self.run.log.now()
        if left_s > 0 and not is_known(lease.owner):
            return left_s
        self.free(lease, lease.suspect_nodes, "its owner has attached again")
        return 0.0

    def clear(self, node: str) -> tuple[str, ...]:
        """Free a node because an operator has confirmed that no lost lease uses it.

        Args:
            node: Name of the node.

        Returns:
            Ids of the jobs whose leases held it.

        Raises:
            NotFound: If no lost lease holds it; one line.
        """
        suspects = [lease for lease in self.leases.values() if node in lease.suspect_nodes]
        if not suspects:
            raise NotFound(f"{one_line(node, 80)}: no lost lease holds it")
        for lease in suspects:
            self.free(lease, (node,), "an operator has cleared it")
        return tuple(lease.handle.id for lease in suspects)

    def suspect_nodes(self) -> dict[str, str]:
        """Return the id of the job that may still use a node, by name of each suspect node."""
        return {name: lease.handle.id for lease in self.leases.values() for name in lease.suspect_nodes}

    def using(self, lease: Lease) -> list[int]:
        """Return the ids of processes on this machine that may use the nodes of a lost lease.

        These are the ones that its owner has named. If none of them lives, they are those that carry a lease of its job, which are
        known from then on.
        """
        owner = lease.owner
        alive = living(owner)
        if alive or not is_seen(owner):
            return alive
        leases = {other.id for other in self.leases.values() if other.handle.id == lease.handle.id} | {lease.id}
        named = own_processes(carriers_of(leases), owner.boot, owner.job_id)
        carrying = tuple(one for one in named if one.started)[:MOST_PROCESSES]
        if carrying:
            self._name(lease, carrying)
        return [one.pid for one in carrying]

    def _name(self, lease: Lease, processes: tuple[OwnerProcess, ...]) -> None:
        """Record the processes of a lease's owner that are known from now on."""
        self.write(lease, replace(lease.owner, at_s=self.run.log.now(), processes=processes))


def wake(handle: JobHandle, why: str) -> None:
    """Refuse all permits that a job waits for, and wake its requests.

    Args:
        handle: The job.
        why: Reason, as the requests report it.
    """
    handle.refuse(Stopped(why))
    handle.changed.notify_all()
    for waits in (*handle.permits.futures.values(), handle.processes.order):
        if waits is not None and waits.done() and not waits.cancelled():
            waits.exception()  # else asyncio logs an error if no request is open to retrieve it


def described(handle: JobHandle) -> dict[str, list[dict[str, Any]]]:
    """Return the nodes of a job by pool, as answers to its owner describe them."""
    return {
        pool: [
            {
                "name": node.name,
                "host": node.host or node.machine,
                "gpus": [int(gpu) if str(gpu).isdigit() else gpu for gpu in node.gpus],
                "cores": [*node.cores],
            }
            for node in nodes
        ]
        for pool, nodes in handle.place.nodes.items()
    }
