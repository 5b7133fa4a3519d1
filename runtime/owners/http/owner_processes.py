"""The processes of owners that this machine sees, by which it is known whether the nodes of a lease are still in use.

A process is identified by its id and its start time, because ids are reused. An id has another meaning in another pid namespace, so
owners in separate containers are treated like owners on other machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rollmux_processes import JOB, lease_variables_of, pid_space, same_host

from runtime.journal.facts import OwnerAttached, OwnerProcess
from runtime.machines.job_processes import started, user_of
from runtime.owners.http.carriers import ancestors_of, is_kernels, is_related

MOST_PROCESSES = 4096  # per owner


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


def identified(pids: Iterable[int]) -> tuple[OwnerProcess, ...]:
    """Return the processes of this machine with some ids, without those that have ended."""
    return tuple(OwnerProcess(pid, start) for pid in pids if (start := started(pid)))


def is_seen(owner: OwnerAttached) -> bool:
    """Return whether an owner's process ids are valid here: same machine, same boot, and same pid namespace."""
    return bool(owner.boot) and pid_space().startswith(owner.boot)  # entries of older journals have no namespace


def has_restarted(owner: OwnerAttached) -> bool:
    """Return whether this machine has been restarted since an owner ran on it, so that none of its processes lives."""
    boot, here = owner.boot.partition(" ")[0], pid_space().partition(" ")[0]
    return same_host(owner.host, os.uname().nodename) and "" not in (boot, here) and boot != here


def living(owner: OwnerAttached) -> list[int]:
    """Return the ids of an owner's processes that are seen to live; empty if its ids are not valid here."""
    if not is_seen(owner):
        return []
    return [one.pid for one in owner.processes if one.started and started(one.pid) == one.started]


def is_known(owner: OwnerAttached) -> bool:
    """Return whether it can be determined which of an owner's processes live."""
    return has_restarted(owner) or (is_seen(owner) and any(one.started for one in owner.processes))
