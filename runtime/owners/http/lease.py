"""A lease of a job's place: who has it, in which state it is, how far its owner is, and which of its processes live.

A process is known by its number and by when the machine started it, since numbers are used again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rollmux_client import ATTACHMENT, Turns

from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.journal.facts import OwnProcess
from runtime.machine import boot_id

_STARTED = 19  # place of the time of start in /proc/PID/stat, behind the name


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


@dataclass(frozen=True)
class Owner:
    """Who has a lease.

    Attributes:
        host, boot, processes: as of `runtime.journal.facts.Attached`.
    """

    host: str = ""
    boot: str = ""
    processes: tuple[OwnProcess, ...] = ()


@dataclass(eq=False)
class Lease:
    """What an owner has of its job's place.

    Attributes:
        id: what the owner says in its requests. handle, stay: of the job, as long as it has this place.
        owner: who it is.
        sign_s: the last sign of life. requests: those that are open.
        turns: how far its owner is, and the phases that it asks for or has been told it has.
        metrics: of iterations that are not over, by number. warm: phases that it has run before.
        state: of `rollmux_client.ATTACHMENT`. ended: why it is over; empty while it lives. stops_s: its owner is to stop, since
            then. suspects: names of the nodes that it held when it was lost. names: of those of the place, when it was attached to.
    """

    id: str
    handle: JobHandle
    stay: Stay
    owner: Owner
    sign_s: float
    turns: Turns
    requests: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    state: str = ATTACHMENT["away"]["attach"]
    ended: str = ""
    stops_s: float | None = None
    suspects: set[str] = field(default_factory=set)
    names: frozenset[str] = frozenset()

    @property
    def holds(self) -> bool:
        """Whether its owner may be using nodes."""
        return bool(self.turns.granted)

    @property
    def moves(self) -> bool:
        """Whether its owner is to give up this place, for another one."""
        return self.state == "to move"

    def go(self, event: str, why: str = "") -> None:
        """Something has happened to it.

        Args:
            why: it is over then.
        """
        self.state = ATTACHMENT[self.state][event]
        self.ended = self.ended or why


def owner_of(host: str, pids: Iterable[int]) -> Owner:
    """The owner on a host that names its processes there; those of another machine than this one cannot be looked at."""
    boot = boot_id().strip() if host == os.uname().nodename else ""
    return Owner(host, boot, own_processes(pids, boot))


def own_processes(pids: Iterable[int], boot: str) -> tuple[OwnProcess, ...]:
    """The processes that an owner names.

    Args:
        boot: of their machine, where that is this one; else empty.
    """
    return tuple(OwnProcess(pid, _started(pid) if boot else 0) for pid in dict.fromkeys(pids))


def living(owner: Owner) -> list[int]:
    """Those of an owner's processes that are seen to live: none where they are of another machine, or of one started since."""
    if not owner.boot or owner.boot != boot_id().strip():
        return []
    return [one.pid for one in owner.processes if one.started and _started(one.pid) == one.started]


def _started(pid: int) -> int:
    """When the machine started a living process, in clock ticks; 0: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[_STARTED])
