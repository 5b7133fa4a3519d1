"""Leases that owners hold of jobs' placements: their states, journal entries, ends, and resumption by a restarted service.

For leases without a heartbeat, and for nodes of lost leases, the ledger looks for processes that still use them. A process is
identified by its id and its start time, because ids are reused. An id has another meaning in another pid namespace, so owners in
separate containers are treated like owners on other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rollmux_processes import JOB, lease_variables_of, pid_space, same_host
from rollmux_protocol import ATTACHMENT, OutOfOrder, Turns, following

from rollmux_env.errors import Conflict, NotFound
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import park
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import worst_case_s
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import CommandJob
from runtime.jobside.messages import JobEnd, Stopped
from runtime.journal.facts import LeaseEnded, NodesFreed, NodesSuspected, OwnerAttached, OwnerProcess
from runtime.machines.job_processes import started, user_of
from runtime.owners.http.carriers import ancestors_of, carriers_of, is_kernels, is_related

MOST_PROCESSES = 4096  # per owner
_REMEMBERED = 10_000  # most leases that are kept after their end, for late requests
_LOOKS_S = 1.0
_LATE_S = 1.0  # a check later than this means that this process was suspended and heard no heartbeats


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
        return None if self.lease is None or self.lease.ended else self.lease

    def end(self, end: JobEnd) -> None:
        """End the placement, unless it has ended."""
        if not self.over.done():
            self.over.set_result(end)


@dataclass(eq=False)
class Lease:
    """An owner's right to act for a job in the placement that the job had when the owner attached.

    Attributes:
        owner: Owner, its processes and the names of its nodes, as recorded in the journal.
        handle: Job of the lease.
        placement: Period in the placement.
        last_heartbeat_s: Time of the last heartbeat or request, in seconds of the run's clock.
        turns: Progress of the owner, and the phases that it has asked for or been granted.
        requests: Number of open requests.
        metrics: Metrics of iterations that are not over, by number of the iteration.
        metrics_warned: Whether the job's log says that a metric of the owner is left out.
        warm: Phases that the owner has run before.
        state: State of the owner in `rollmux_protocol.ATTACHMENT`.
        ended: Reason why the lease is over, or an empty string while it is active.
        stop_requested_s: Time at which the owner was asked to stop, or None.
        suspect_nodes: Names of the nodes that the lease held when it was lost and that may still be in use.
        is_lost: Whether the lease was lost; its owner has to end at once, even if its nodes are free by then.
        processes_lock: Lock that is held while a heartbeat looks for the owner's processes.
    """

    owner: OwnerAttached
    handle: JobHandle
    placement: AttachedPlacement
    last_heartbeat_s: float
    turns: Turns
    requests: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    metrics_warned: bool = False
    warm: set[str] = field(default_factory=set)
    state: str = field(default_factory=lambda: following(ATTACHMENT, "away", "attach"))
    ended: str = ""
    stop_requested_s: float | None = None
    suspect_nodes: set[str] = field(default_factory=set)
    is_lost: bool = False
    processes_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        """Identifier that the owner sends with its requests."""
        return self.owner.lease

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

    def apply_event(self, event: str, why: str = "") -> None:
        """Change the state of the lease.

        Args:
            event: Event of `rollmux_protocol.ATTACHMENT`.
            why: Reason why the lease is over, or an empty string if it is not.
        """
        self.state = following(ATTACHMENT, self.state, event)
        self.ended = self.ended or why


def shared_pid_space(host: str, space: str) -> str:
    """Return the scope of an owner's process ids if it is that of this process, else an empty string.

    Args:
        host: Name of the machine on which the owner runs.
        space: Scope of the ids as `rollmux_processes.pid_space` returns it there, or an empty string for that of the host.
    """
    here = pid_space()
    return here if same_host(host, os.uname().nodename) and space in ("", here) else ""


def own_processes(pids: Iterable[int], boot: str, job_id: str) -> tuple[OwnerProcess, ...]:
    """Return the processes that an owner names, without those that are known to be none of its job's.

    Args:
        pids: Process ids that the owner names.
        boot: Scope of these ids, as returned by `shared_pid_space`.
        job_id: Id of the owner's job.
    """
    above = ancestors_of(os.getpid()) if boot else set()
    own = (pid for pid in dict.fromkeys(pids) if not (boot and (pid in above or _is_others(pid, job_id))))
    return tuple(OwnerProcess(pid, started(pid) if boot else 0) for pid in own)


def _is_others(pid: int, job_id: str) -> bool:
    """Return whether a process is the kernel's, carries another job's lease, or is process 1, with which all others would end."""
    return pid == 1 or is_kernels(pid) or lease_variables_of(pid).get(JOB, job_id) != job_id


def known_processes(owner: OwnerAttached, pids: Iterable[int]) -> tuple[OwnerProcess, ...]:
    """Return the living processes of an owner on this machine that it has named before, or names now.

    A process that is named now has to have the user of a living one, or to be related to one, such as a child that sudo has started
    as another user. If none lives any more, the ones that were named before stay known: their nodes are then freed whether the
    deaths or a late heartbeat are seen first.

    Args:
        owner: The owner.
        pids: Process ids that it names now.

    Returns:
        `MOST_PROCESSES` processes at most.
    """
    lasting = [one for one in owner.processes if one.started and started(one.pid) == one.started]
    known, named = {one.pid for one in lasting}, {one.pid for one in owner.processes}
    user = next((user_of(one.pid) for one in lasting), None)
    fresh = [
        pid
        for pid in dict.fromkeys(pids)
        if pid not in known and ((user is not None and user_of(pid) == user) or is_related(pid, owner.lease, named))
    ]
    alive = (*lasting, *(one for one in own_processes(fresh, owner.boot, owner.job_id) if one.started))
    return alive[:MOST_PROCESSES] or owner.processes


def is_seen(owner: OwnerAttached) -> bool:
    """Return whether an owner's process ids are valid here: same machine, same boot, and same pid namespace."""
    return bool(owner.boot) and pid_space().startswith(owner.boot)  # entries of older journals have no namespace


def _has_named(owner: OwnerAttached) -> bool:
    return any(one.started for one in owner.processes)


def has_restarted(owner: OwnerAttached) -> bool:
    """Return whether this machine has been restarted since an owner ran on it, so that none of its processes lives."""
    boot, here = owner.boot.partition(" ")[0], pid_space().partition(" ")[0]
    return same_host(owner.host, os.uname().nodename) and "" not in (boot, here) and boot != here


def living(owner: OwnerAttached) -> list[int]:
    """Return the ids of an owner's processes that are seen to live; empty if its ids are not valid here."""
    if not is_seen(owner):
        return []
    return [one.pid for one in owner.processes if one.started and started(one.pid) == one.started]


def _is_known(owner: OwnerAttached) -> bool:
    """Return whether it can be determined which of an owner's processes live."""
    return has_restarted(owner) or (is_seen(owner) and _has_named(owner))


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
        lease.last_heartbeat_s = self.run.log.now()
        lease.requests += 1
        try:
            yield
        except OutOfOrder as wrong:
            raise Conflict(f"job {lease.handle.id}: {wrong}") from None
        finally:
            lease.requests -= 1
            lease.last_heartbeat_s = self.run.log.now()

    def add(self, lease: Lease) -> None:
        """Register a new lease, and forget the oldest ones that are over."""
        self.leases[lease.id] = lease
        lease.placement.lease = lease
        self.run.log.write(lease.owner)
        if len(self.leases) > _REMEMBERED:
            over = [other for other in self.leases.values() if other.ended and not other.suspect_nodes]
            for other in over[: max(0, len(over) - _REMEMBERED)]:
                del self.leases[other.id]

    def end(self, lease: Lease, why: str, end: JobEnd | None, done: bool = False) -> None:
        """End a lease whose owner uses nothing any more.

        Args:
            lease: The lease.
            why: Reason, for the log and the journal.
            end: Reason why the placement ends, or None if another lease of it may follow.
            done: Whether the job is done.
        """
        self._over(lease, "finish" if done else "leave", why)
        self.run.log.write(LeaseEnded(self.run.log.now(), lease.handle.id, lease.id, done, why))
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
        lease.is_lost = True
        self._over(lease, "lose", why)
        self.run.log.write(LeaseEnded(self.run.log.now(), lease.handle.id, lease.id, False, why, lost=True))
        self.run.log.say(f"{lease.handle.id}: {why}")
        self.suspect(lease, remaining)
        if not lease.suspect_nodes:
            lease.placement.free.set()
            lease.apply_event("free")
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
            self._name(lease, (OwnerProcess(pid, started(pid)) for pid in sorted({*remaining, *living(lease.owner)})))
        alive = [] if lease.is_elsewhere else sorted({*remaining, *self._using(lease)})
        names = {node.name for phase in lease.turns.granted for node in place.nodes_of(phase)} or {*(place.names if alive else ())}
        if names <= lease.suspect_nodes:
            return
        lease.suspect_nodes |= names
        self.suspected[job_id] = lease
        lease.placement.free.clear()
        self.run.log.write(NodesSuspected(self.run.log.now(), job_id, lease.id, tuple(sorted(names))))
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
        self.run.log.write(NodesFreed(self.run.log.now(), lease.handle.id, lease.id, names, why))
        self.run.log.say(f"{lease.handle.id}: {', '.join(names)} is free again: {why}")
        lease.suspect_nodes -= {*names}
        if not lease.suspect_nodes:
            if lease.state == "lost":
                lease.apply_event("free")
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

    def _over(self, lease: Lease, event: str, why: str) -> None:
        lease.apply_event(event, why)
        self.recalled.pop(lease.handle.id, None)
        self.run.log.write_job_log(lease.handle.id, f"detached: {why}")
        wake(lease.handle, why)

    async def patrol(self) -> None:
        """Check all leases every second until the run ends."""
        last_s = self.run.log.now()
        while True:
            await asyncio.sleep(_LOOKS_S)
            await self.run.written()
            now_s = self.run.log.now()
            late_s, last_s = now_s - last_s - _LOOKS_S, now_s
            if late_s > _LATE_S:
                self.extend_leases(late_s)
            self.check_leases()

    def extend_leases(self, late_s: float) -> None:
        """Extend leases and holds by a time in which the coordinator was suspended and answered no request.

        Args:
            late_s: Length of that time, in seconds. Owners may have been heard in it.
        """
        now_s = self.run.log.now()
        for lease in self.leases.values():
            lease.last_heartbeat_s = min(now_s, lease.last_heartbeat_s + late_s)
            lease.handle.permits.restart_clocks(now_s)  # no request to release a phase was answered

    def check_leases(self) -> None:
        """Give up leases that are lost, free nodes that their owners do not use any more, and end unclaimed placements."""
        run = self.run
        if run.stopping:
            return
        now_s = run.log.now()
        for lease in [*self.leases.values()]:
            if lease.ended:
                self._free_unused(lease, now_s)
            elif why := _why_lost(run, lease, now_s):
                self.lose(lease, why)
        for handle in [*run.handles.values()]:
            placement = self.placement_of(handle)
            if placement is not None and placement.active_lease is None and handle.life.is_alive:
                self._check_unclaimed(handle, placement, now_s)

    def _check_unclaimed(self, handle: JobHandle, placement: AttachedPlacement, now_s: float) -> None:
        """Take a placement without an owner from a job that is parked, or to which no owner has attached for too long."""
        if isinstance(handle.spec, CommandJob):
            self._check_returned(handle, placement, now_s)
        elif handle.life.is_yielding and not placement.over.done():  # no owner does an iteration
            self.run.apply(park(self.run, handle))
        elif now_s - placement.unclaimed_since_s > self.run.plan.leases.claim_s:  # its owner asks for a placement when it comes
            handle.place.set_awaits_owner(True)
            placement.end(JobEnd("died", "step", "nobody has attached to it"))

    def _check_returned(self, handle: JobHandle, placement: AttachedPlacement, now_s: float) -> None:
        """End a command that has given its lease back and hangs. A notice follows from the nodes, which are suspect until then."""
        limit_s = self.run.plan.timeouts.least_s
        if placement.lease is None or placement.over.done() or now_s - placement.unclaimed_since_s <= limit_s:
            return
        why = f"its command has given its lease back, and has neither ended nor attached again for {limit_s:g} s"
        self.run.log.say(f"{handle.id}: {why}")
        self.suspect(placement.lease)
        placement.end(JobEnd("died", "step", why))

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
        alive = [pid for pid in self._using(lease) if pid not in pids]
        if alive:
            names = ", ".join(sorted(lease.suspect_nodes))
            raise Conflict(f"job {lease.handle.id}: process {alive[0]} of its last lease lives, and may use {names}; end it first")
        left_s = lease.last_heartbeat_s + self.run.plan.leases.fenced_s - self.run.log.now()
        if left_s > 0 and not _is_known(lease.owner):
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

    def _using(self, lease: Lease) -> list[int]:
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

    def _name(self, lease: Lease, processes: Iterable[OwnerProcess]) -> None:
        """Record the processes of a lease's owner that are known from now on."""
        lease.owner = replace(lease.owner, at_s=self.run.log.now(), processes=tuple(one for one in processes if one.started))
        self.run.log.write(lease.owner)

    def _free_unused(self, lease: Lease, now_s: float) -> None:
        """Free the nodes of a lost lease if its grace is over or no process of its owner lives."""
        rules = self.run.plan.leases
        if not lease.suspect_nodes:
            return
        if rules.grace_s is not None and now_s - lease.last_heartbeat_s > max(rules.ttl_s + rules.grace_s, rules.fenced_s):
            self.free(lease, lease.suspect_nodes, f"{rules.grace_s:g} s of grace have passed")
        elif _is_known(lease.owner) and not self._using(lease):
            self.free(lease, lease.suspect_nodes, "its owner's processes have ended")


def _why_lost(run: RunState, lease: Lease, now_s: float) -> str:
    """Return why an active lease is lost, or an empty string if it is not."""
    rules = run.plan.leases
    if not lease.requests and now_s - lease.last_heartbeat_s > rules.ttl_s:
        return f"its lease is lost: no sign of life for {rules.ttl_s:g} s"
    if lease.stop_requested_s is not None and now_s - lease.stop_requested_s > rules.ttl_s:
        return f"it was asked to stop, and has not done so for {rules.ttl_s:g} s"
    if rules.max_hold_worst_cases is not None and (too_long := _too_long(run, lease, rules.max_hold_worst_cases, now_s)):
        return f"its lease is lost: {too_long}"
    return ""


def _too_long(run: RunState, lease: Lease, most: float, now_s: float) -> str:
    """Return a message about a phase of a lease that has exceeded its limit, or an empty string.

    Args:
        run: The run.
        lease: The lease.
        most: Limit, as a multiple of the phase's worst case or of the time that it is given without one.
        now_s: Current time, in seconds of the run's clock.
    """
    handle = lease.handle
    for phase in lease.turns.granted & handle.permits.holds.keys():
        hold, (worst_s, is_planned) = handle.permits.holds[phase], worst_case_s(run, handle, phase)
        held_s = now_s - max(hold.start_s, hold.ready_s)
        if held_s > most * worst_s:
            limit = f"its worst case of {worst_s:.4g} s" if is_planned else f"the {worst_s:.4g} s that it is given"
            return f"its {phase} has taken {held_s:.0f} s, more than {most:g} times {limit}"
    return ""


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
