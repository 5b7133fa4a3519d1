"""Processes of this machine that belong to a lease without being named by its owner."""

from __future__ import annotations

from collections.abc import Collection

import rollmux_processes

_FLAGS = 6  # index of the flags in /proc/PID/stat, after the name
_KERNEL = 0x200000  # PF_KTHREAD


def carriers_of(leases: Collection[str]) -> list[int]:
    """Return the ids of this machine's processes that carry one of some leases in their environment, as far as it can be read."""
    return sorted(rollmux_processes.carriers(leases, rollmux_processes.processes()))


def is_related(pid: int, lease: str, named: Collection[int]) -> bool:
    """Return whether a process carries a lease, or its group, its session or an ancestor is among some process ids.

    Args:
        pid: The process.
        lease: Id of the lease.
        named: Process ids that the lease's owner has named.
    """
    one = rollmux_processes.process(pid)
    if (
        one is None
        or rollmux_processes.lease_variables_of(pid).get(rollmux_processes.LEASE) == lease
        or not {one.group, one.session}.isdisjoint(named)
    ):
        return one is not None
    return not ancestors_of(pid).isdisjoint(named)


def ancestors_of(pid: int) -> set[int]:
    """Return a process and those by which it was started, as far as they live, without process 1."""
    lineage = set[int]()
    while pid > 1 and pid not in lineage and (one := rollmux_processes.process(pid)) is not None:
        lineage.add(pid)
        pid = one.parent
    return lineage


def is_kernels(pid: int) -> bool:
    """Return whether a process is a thread of the kernel, which never ends."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[_FLAGS]) & _KERNEL)
    except (OSError, ValueError, IndexError):  # there is none
        return False
