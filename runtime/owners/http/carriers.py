"""Processes of this machine that belong to a lease without being named by its owner."""

from __future__ import annotations

from collections.abc import Collection

import rollmux_client


def carriers_of(leases: Collection[str]) -> list[int]:
    """Return the ids of this machine's processes that carry one of some leases in their environment, as far as it can be read."""
    return sorted(rollmux_client.carriers(leases, rollmux_client.processes()))


def is_related(pid: int, lease: str, named: Collection[int]) -> bool:
    """Return whether a process carries a lease, or its group, its session or an ancestor is among some process ids.

    Args:
        pid: The process.
        lease: Id of the lease.
        named: Process ids that the lease's owner has named.
    """
    one = rollmux_client.process(pid)
    if (
        one is None
        or rollmux_client.lease_variables_of(pid).get(rollmux_client.LEASE) == lease
        or not {one.group, one.session}.isdisjoint(named)
    ):
        return one is not None
    visited = set[int]()
    while one is not None and one.parent > 1 and one.parent not in visited:
        if one.parent in named:
            return True
        visited.add(one.parent)
        one = rollmux_client.process(one.parent)
    return False
