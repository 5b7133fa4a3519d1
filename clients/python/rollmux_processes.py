"""Processes that belong to the leases of jobs, and the machine on which they run.

`rollmux exec`, the clients of jobs and the service find them in /proc by the lease in their environment. `rollmux_client` fences a
job by killing them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

LEASE, JOB, URL, KEEPER = "ROLLMUX_LEASE", "ROLLMUX_JOB", "ROLLMUX_URL", "ROLLMUX_KEEPER"
"""Environment variables of a command of `rollmux exec`. `KEEPER` names the process that keeps the lease (see `keeper_of`)."""
_READ = (LEASE, JOB, URL, KEEPER)  # variables to read from other processes, without the token

_ending = threading.Lock()
_ENDS = 100  # largest number of searches for processes to kill
_WRITES_S = 0.5  # longest wait until standard error takes a line


class Process(NamedTuple):
    """A process, as /proc/PID/stat describes it.

    Attributes:
        parent: Process id of its parent.
        group: Id of its process group.
        session: Id of its session.
        started: Time at which it was started, in clock ticks since the machine was booted. A process id is used again; the pair
            of both is not.
        is_zombie: Whether it has ended, and its parent has not read its status.
        is_stopped: Whether it is stopped, as by Ctrl-Z.
    """

    parent: int
    group: int
    session: int
    started: int
    is_zombie: bool
    is_stopped: bool = False


def process(pid: int) -> Process | None:
    """Return a process by its id, or None if there is none that can be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        state, parent, group, session, started = fields[0], *(int(fields[place]) for place in (1, 2, 3, 19))
        is_zombie = state in b"ZX" and len(os.listdir(f"/proc/{pid}/task")) < 2  # it lives as long as one of its threads does
    except (OSError, ValueError, IndexError):  # it has just ended
        return None
    return Process(parent, group, session, started, is_zombie, state in b"Tt")


def processes() -> dict[int, Process]:
    """Return all processes that can be read, zombies among them, by id; empty on systems without /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    return {pid: one for pid in pids if (one := process(pid)) is not None}


def lease_variables_of(pid: int) -> dict[str, str]:
    """Return the variables of `rollmux exec` in the environment that a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return {}
    if LEASE.encode() not in text:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _READ}


def carriers(leases: Collection[str], pids: Iterable[int]) -> set[int]:
    """Return the processes among `pids` that have one of the leases in their environment."""
    return {pid for pid in pids if lease_variables_of(pid).get(LEASE) in leases} if leases else set()


def descendants(roots: Collection[int], table: dict[int, Process]) -> set[int]:
    """Return some processes and all their descendants.

    Args:
        roots: Process ids.
        table: Processes, as `processes` returns them.
    """
    children: dict[int, list[int]] = {}
    for pid, one in table.items():
        children.setdefault(one.parent, []).append(pid)
    family, queue = set(roots), list(roots)
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in family]
        family.update(fresh)
        queue += fresh
    return family


def keeper_of(pid: int) -> str:
    """Return the value of `KEEPER` for a process of this process id namespace."""
    one = process(pid)
    return f"{pid} {one.started if one else 0} {pid_space()}".strip()


def is_keeper_alive(keeper: str, counts_stopped: bool = True) -> bool | None:
    """Return whether the process that a value of `KEEPER` names lives on this machine.

    Args:
        keeper: The value.
        counts_stopped: Whether a process that is stopped counts as alive. It fences nothing.

    Returns:
        None if it is in another process id namespace, such as that of a container, where it cannot be seen.
    """
    pid, started, space = (*keeper.split(" ", 2), "", "", "")[:3]
    if space not in ("", pid_space()):
        return None
    one = process(int(pid)) if pid.isdigit() else None
    if one is None or one.is_zombie or str(one.started) != started:
        return False
    return counts_stopped or not one.is_stopped


class LeaseProcesses:
    """The processes on this machine that belong to the leases of a job.

    A process belongs to a lease if it has `ROLLMUX_LEASE` with the lease's value in its environment, independent of its session and
    process group, because launchers such as torchrun give each rank a separate session. All descendants of such a process belong to
    the lease too, because engines that set a process title overwrite their environment, and some programs start others with an
    empty environment.

    A process that was found once is remembered. It still belongs to the job after its parent has ended and its environment has been
    overwritten.

    Attributes:
        leases: Ids of all leases that the job has had here. Child processes may have an older one.
    """

    def __init__(self) -> None:
        self.leases: set[str] = set()
        self._known: dict[int, int] = {}  # time of start, by process id
        self._added: dict[int, int] = {}  # apart from `_known`, because another thread may be in `find` while processes are added

    def add(self, pids: Iterable[int]) -> None:
        """Add processes that belong to the job although nothing shows it, such as the other ranks of a launcher."""
        self._added |= {pid: one.started for pid in pids if (one := process(pid)) is not None}

    def find(self, table: dict[int, Process], roots: Collection[int] = (), group: int | None = None) -> set[int]:
        """Return the ids of the job's living processes.

        Args:
            table: Processes, as `processes` returns them.
            roots: Processes that belong to the job with their descendants.
            group: Process group that belongs to the job, or None.
        """
        living = {pid: one for pid, one in table.items() if not one.is_zombie}
        known = self._known | self._added
        mine = {pid for pid, one in living.items() if known.get(pid) == one.started or one.group == group}
        mine |= carriers(self.leases, living.keys() - mine) | {*roots}
        mine = descendants(mine, living) & living.keys()
        self._known = {pid: living[pid].started for pid in mine}
        return mine


def same_host(one: str, other: str) -> bool:
    """Return whether two host names may belong to one machine. A short name matches any domain, and case does not matter."""
    first, second = one.casefold().rstrip("."), other.casefold().rstrip(".")
    if first == second or any(not name.strip("0123456789.") for name in (first, second)):  # addresses have no short form
        return first == second
    return first.partition(".")[0] == second.partition(".")[0] and ("." not in first or "." not in second)


def pid_space() -> str:
    """Return an identifier of the scope in which process ids are unique, or an empty string if the system does not tell.

    It combines the boot of the machine and the process id namespace, such as that of a container.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def end_own_processes(why: str, find: Callable[[], Collection[int]]) -> None:
    """Write the reason to standard error, and kill this process and others at once with SIGKILL.

    Args:
        why: Reason, for standard error.
        find: Function that returns the ids of the processes to kill. It is called until it finds no others, because they may be
            starting new processes.
    """
    _ending.acquire()  # never released, so that only one thread does this
    try:
        _write_error(f"rollmux_client: {why}: this process ends, with all that belong to the job\n")
        for _ in range(_ENDS):
            others = {*find()} - {os.getpid()}
            if not others:
                break
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        os.kill(0, signal.SIGKILL)  # not by the group's number, because kill(-1) for group 1 of a container means all processes
    finally:
        os._exit(128 + signal.SIGKILL)  # process 1 of a container ignores its own signal; its exit ends the whole container


def _write_error(line: str) -> None:
    """Write a line to standard error, unless it is closed, its disk is full, or it is a pipe that is not read."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], _WRITES_S)[1]:
            os.write(2, line.encode())
