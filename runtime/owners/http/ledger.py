"""Leases of jobs' places: who has them, in which state they are, what becomes durable of them, how they end, and go on with
their run.

Of leases without a sign of life, and of nodes that lost ones held, it looks who still uses them, as far as that can be known. A
process is known by its number and by when the machine started it, since numbers are used again. A number says nothing in another
namespace of process numbers: owners in containers of their own are as those on other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rollmux_client import ATTACHMENT, JOB, OutOfOrder, Turns, marks, pid_space, same_host

from rollmux_env.errors import Conflict, NotFound
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import worst_case_s
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import CommandJob
from runtime.jobside.messages import End, Stopped
from runtime.journal.facts import Attached, Freed, LeaseEnded, OwnProcess, Suspected
from runtime.machines.job_processes import started, user_of
from runtime.owners.http.carriers import carriers_of, is_related

MOST_PROCESSES = 4096  # of an owner that are looked at
_REMEMBERED = 10_000  # leases that are over
_LOOKS_S = 1.0
_LATE_S = 1.0  # a look so late: this process was stopped or waited for its disk, and nobody could give a sign of life


@dataclass(eq=False)
class Stay:
    """The time of an attached job in a place.

    Attributes:
        since_s: when nobody has had a lease of it since. lease: the last one of it.
        over: why the stay ends. free: what the lease held is in nobody's hands any more.
    """

    since_s: float
    lease: Lease | None = None
    over: asyncio.Future[End] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def living(self) -> Lease | None:
        """Its lease, as long as that lives."""
        return None if self.lease is None or self.lease.ended else self.lease

    def end(self, end: End) -> None:
        """It ends, if it has not ended yet."""
        if not self.over.done():
            self.over.set_result(end)


@dataclass(eq=False)
class Lease:
    """What an owner has of its job's place.

    Attributes:
        owner: who has it, and of which nodes, as the journal knows it. handle, stay: of the job, as long as it has this place.
        sign_s: the last sign of life. requests: those that are open.
        turns: how far its owner is, and the phases that it asks for or has been told it has.
        metrics: of iterations that are not over, by number. warm: phases that it has run before.
        state: of `rollmux_client.ATTACHMENT`. ended: why it is over; empty while it lives. stops_s: its owner is to stop, since
            then. suspects: names of the nodes that it held when it was lost.
        is_lost: Whether it was lost; its owner is to end at once, whatever became of its nodes.
        naming: held while a request looks for its owner's processes.
    """

    owner: Attached
    handle: JobHandle
    stay: Stay
    sign_s: float
    turns: Turns
    requests: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    state: str = ATTACHMENT["away"]["attach"]
    ended: str = ""
    stops_s: float | None = None
    suspects: set[str] = field(default_factory=set)
    is_lost: bool = False
    naming: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        """What the owner says in its requests."""
        return self.owner.lease

    @property
    def holds(self) -> bool:
        """Whether its owner may be using nodes."""
        return bool(self.turns.granted)

    @property
    def moves(self) -> bool:
        """Whether its owner is to give up this place, for another one."""
        return self.state == "to move"

    @property
    def is_elsewhere(self) -> bool:
        """Whether the place that its job has now is another one: no permit of that is for its owner."""
        return {*self.owner.nodes} != self.handle.place.names

    @property
    def is_awaited(self) -> bool:
        """Whether its owner has been told to go to the place that its job has now, and has begun nothing that it would do anew."""
        begun = self.turns.open or self.turns.rollouts > self.turns.done
        return self.moves and self.is_elsewhere and self.handle.lives and not begun

    def go(self, event: str, why: str = "") -> None:
        """Something has happened to it.

        Args:
            why: it is over then.
        """
        self.state = ATTACHMENT[self.state][event]
        self.ended = self.ended or why


def space_of(host: str, space: str) -> str:
    """Where an owner's process numbers mean something, if they mean the same here; else empty: others cannot be looked at.

    Args:
        host: on which the owner is. space: what it says of its own processes, as `rollmux_client.pid_space`; empty: of its host.
    """
    here = pid_space()
    return here if same_host(host, os.uname().nodename) and space in ("", here) else ""


def own_processes(pids: Iterable[int], boot: str, job_id: str) -> tuple[OwnProcess, ...]:
    """Return the processes that an owner names, without those that are seen to be somebody else's.

    Args:
        pids: Process ids that it names.
        boot: Where these mean something, as of `space_of`.
        job_id: Id of its job.
    """
    own = (pid for pid in dict.fromkeys(pids) if not (boot and _is_others(pid, job_id)))
    return tuple(OwnProcess(pid, started(pid) if boot else 0) for pid in own)


def _is_others(pid: int, job_id: str) -> bool:
    """Return whether a process is not of a job: it carries another job's lease, or is the first one here, with which all end."""
    return pid == 1 or marks(pid).get(JOB, job_id) != job_id


def known_processes(owner: Attached, pids: Iterable[int]) -> tuple[OwnProcess, ...]:
    """Return the living processes of an owner on this machine that it has named before, or names now.

    Those that are named now are of the user of one that lives, or related to them, as the child of another user that sudo has
    started. Where none lives any more, those that were named before stay known: what they held is free then, in whatever order
    their deaths and a late heartbeat are heard.

    Args:
        owner: The owner.
        pids: Process ids that it names now.

    Returns:
        `MOST_PROCESSES` at most.
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


def is_seen(owner: Attached) -> bool:
    """Whether an owner's processes are such that can be looked at: of this machine since it was booted, and of this namespace."""
    return bool(owner.boot) and pid_space().startswith(owner.boot)  # journals of before have no namespace


def _has_named(owner: Attached) -> bool:
    return any(one.started for one in owner.processes)


def has_restarted(owner: Attached) -> bool:
    """Whether an owner was on this machine before it was booted last: none of its processes lives."""
    boot, here = owner.boot.partition(" ")[0], pid_space().partition(" ")[0]
    return same_host(owner.host, os.uname().nodename) and "" not in (boot, here) and boot != here


def living(owner: Attached) -> list[int]:
    """Those of an owner's processes that are seen to live: none where their numbers mean others here."""
    if not is_seen(owner):
        return []
    return [one.pid for one in owner.processes if one.started and started(one.pid) == one.started]


def _is_known(owner: Attached) -> bool:
    """Whether it can be seen which of an owner's processes live."""
    return has_restarted(owner) or (is_seen(owner) and _has_named(owner))


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

    def lease(self, lease_id: str) -> Lease:
        """A lease by its id.

        Raises:
            NotFound: there is none, or it ended long ago.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            raise NotFound("there is no such lease; attach to the job again")
        return lease

    def last_of(self, job_id: str) -> Lease | None:
        """Return the last lease that an owner of a job has had, or None if it has had none that is known."""
        return next((lease for lease in reversed(self.leases.values()) if lease.handle.id == job_id), None)

    def stay(self, handle: JobHandle) -> Stay | None:
        """A job's time in the place that it has; None where it has none."""
        return handle.actors.controller if isinstance(handle.actors.controller, Stay) else None

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
        self.run.log.write(lease.owner)
        if len(self.leases) > _REMEMBERED:
            over = [other for other in self.leases.values() if other.ended and not other.suspects]
            for other in over[: max(0, len(over) - _REMEMBERED)]:
                del self.leases[other.id]

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
            names = tuple(sorted({node.name for phase in lease.turns.granted for node in lease.handle.place.nodes_of(phase)}))
            lease.suspects = set(names)
            self.suspected[job_id] = lease
            facts.append(Suspected(now_s, job_id, lease.id, names))
            pids = ", ".join(map(str, living(lease.owner)))
            by = f" by process {pids}" if pids else ""
            self.run.log.say(f"{job_id}: {why}; {', '.join(names)} may still be in use{by}, and is granted to nobody")
        else:
            lease.stay.free.set()
            alive = ", ".join(map(str, living(lease.owner)))
            self.run.log.say(f"{job_id}: {why}" + (f"; process {alive} of it lives" if alive else ""))
        lease.is_lost = True
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

    def release(self, lease: Lease, phase: HoldName) -> None:
        """A phase of a lease that is over has ended; what that held is free when none is left."""
        lease.turns.granted.discard(phase)
        if not lease.holds:
            self.free(lease, lease.suspects, "its owner has released it")

    def block(self, lease: Lease) -> None:
        """A lost lease holds nodes that the scheduler cannot know as its own: nothing is granted until they are free."""
        self._blocks.add(lease.id)
        self.run.scheduler.members.stopped = True
        names = ", ".join(sorted(lease.suspects))
        self.run.log.say(f"{lease.handle.id}: nothing is granted until it is known that it does not use {names} any more")

    def _unblock(self, lease: Lease) -> None:
        if lease.id in self._blocks:
            self._blocks.discard(lease.id)
            if not self._blocks and not self.run.stopping:
                self.run.scheduler.members.stopped = False
                self.run.tell()

    def _over(self, lease: Lease, event: str, why: str) -> None:
        lease.go(event, why)
        self.run.log.tell_of(lease.handle.id, f"detached: {why}")
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
                self.excuse(late_s)
            self.look()

    def excuse(self, late_s: float) -> None:
        """Leave a time in which the coordinator did nothing out of the silence of owners and of what they hold.

        Args:
            late_s: Length of that time, in seconds; owners may have been heard in it.
        """
        now_s = self.run.log.now()
        for lease in self.leases.values():
            lease.sign_s = min(now_s, lease.sign_s + late_s)
            lease.handle.permits.excuse(now_s)  # no request to release a phase was answered

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
            elif rules.max_hold is not None and (too_long := self._too_long(lease, rules.max_hold, now_s)):
                self.lose(lease, f"its lease is lost: {too_long}")
        for handle in [*run.handles.values()]:
            stay = self.stay(handle)
            if stay is None or stay.living is not None or not handle.lives or isinstance(handle.spec, CommandJob):
                continue
            if now_s - stay.since_s > rules.claim_s:  # it gives its place to others, and asks for one when its owner comes
                handle.place.park(True)
                stay.end(End("died", "step", "nobody has attached to it"))

    def _too_long(self, lease: Lease, most: float, now_s: float) -> str:
        """Return which phase of a lease takes more than so many worst cases; empty if none does."""
        handle = lease.handle
        for phase in lease.turns.granted & handle.permits.holds.keys():
            hold, worst_s = handle.permits.holds[phase], worst_case_s(self.run, handle, phase)
            held_s = now_s - max(hold.start_s, hold.since_s)
            if worst_s is not None and held_s > most * worst_s:
                return f"its {phase} has taken {held_s:.0f} s, more than {most:g} times its worst case of {worst_s:.4g} s"
        return ""

    def speak_for(self, lease: Lease, pids: Collection[int]) -> float:
        """The owner of a lost lease attaches again, and by that says that it uses nothing.

        Args:
            pids: its processes now.

        Returns:
            Seconds for which that is not believed yet: by a slow clock the lease lives, and one who attaches beside that owner is
            another process.

        Raises:
            Conflict: processes of its lost lease are seen to live, and are none of these.
        """
        alive = [pid for pid in self._using(lease) if pid not in pids]
        if alive:
            names = ", ".join(sorted(lease.suspects))
            raise Conflict(f"job {lease.handle.id}: process {alive[0]} of its last lease lives, and may use {names}; end it first")
        left_s = lease.sign_s + self.run.plan.leases.fenced_s - self.run.log.now()
        if left_s > 0 and not _is_known(lease.owner):
            return left_s
        self.free(lease, lease.suspects, "its owner has attached again")
        return 0.0

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

    def _using(self, lease: Lease) -> list[int]:
        """Return processes of this machine that may use what a lost lease held: those that its owner has named, or else those that
        carry a lease of its job and were never named; they are known from now on."""
        owner = lease.owner
        alive = living(owner)
        if alive or not is_seen(owner):
            return alive
        leases = {other.id for other in self.leases.values() if other.handle.id == lease.handle.id} | {lease.id}
        named = own_processes(carriers_of(leases), owner.boot, owner.job_id)
        carrying = tuple(one for one in named if one.started)[:MOST_PROCESSES]
        if carrying:
            lease.owner = replace(owner, at_s=self.run.log.now(), processes=carrying)
            self.run.log.write(lease.owner)
        return [one.pid for one in carrying]

    def _free_unused(self, lease: Lease, now_s: float) -> None:
        """Free what a lost lease held, if it is known that nobody uses it."""
        rules = self.run.plan.leases
        if not lease.suspects:
            return
        if rules.grace_s is not None and now_s - lease.sign_s > max(rules.ttl_s + rules.grace_s, rules.fenced_s):
            self.free(lease, lease.suspects, f"{rules.grace_s:g} s of grace are over")
        elif _is_known(lease.owner) and not self._using(lease):
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
