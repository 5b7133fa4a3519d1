"""Nodes without Ray: this machine divided into nodes, or hosts that a file names.

    hosts:
      rollout: [gpu-1, gpu-2]
      training: [gpu-3, gpu-3]

Each entry is a node of that pool, with `gpus_per_node` GPUs of the host. If a host is named several times, its GPUs are assigned in
the order of the entries. The devices of this machine are divided among its entries.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from rollmux_processes import same_host

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel
from rollmux_env.keys.cluster import Cluster
from rollmux_env.reading import read_mapping
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.gpus import device_count
from runtime.machine import Node, Pool
from runtime.machines.nodes import POOLS, divide_machine, find_nodes

_Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")]


class HostsFile(FileModel):
    """Names of the hosts of a service's nodes, one entry per node."""

    rollout: Annotated[tuple[_Host, ...], Field(strict=False)] = ()
    """Hosts of the rollout nodes; none with `one_device`."""
    training: Annotated[tuple[_Host, ...], Field(strict=False, min_length=1)]
    """Hosts of the training nodes."""

    def entries(self) -> list[tuple[Pool, str]]:
        """Return pool and host of each node, rollout nodes first."""
        return [(pool, host) for pool in POOLS for host in getattr(self, pool)]


def load_hosts(path: Path) -> HostsFile | None:
    """Return the `hosts` of a file, or None if it has none.

    Raises:
        InputError: If the file cannot be read, or `hosts` is malformed; one line.
    """
    data = read_mapping(path)
    if "hosts" not in data:
        return None
    try:
        return HostsFile.model_validate(data["hosts"])
    except ValidationError as error:
        raise InputError(f"{one_line(str(path), 4096)}: {one_line(format_error(problems(error)[0], HostsFile, 'hosts'))}") from None


def nodes_here(wanted: Mapping[Pool, int]) -> tuple[Node, ...]:
    """Return nodes of this machine.

    Args:
        wanted: Number of nodes in each pool.

    Raises:
        InputError: If it has too few devices for these numbers; one line.
    """
    here = os.uname().nodename
    return find_nodes([_machine(here)], wanted, here)


def nodes_of_hosts(hosts: HostsFile, cluster: Cluster) -> tuple[Node, ...]:
    """Return a node for each entry, named by pool and number.

    Args:
        hosts: Entries of the file.
        cluster: Cluster with its pools.

    Raises:
        InputError: If the cluster has no such pool, or this machine has fewer devices than its entries need; one line.
    """
    here = os.uname().nodename
    entries = hosts.entries()
    if (absent := next((pool for pool, _ in entries if pool not in cluster.pools), None)) is not None:
        instead = ": with one_device, all phases run on training nodes" if cluster.one_device else ""
        raise InputError(f"hosts.{absent}: the cluster has no {absent} pool{instead}")
    own: dict[Pool, int] = {pool: sum(of == pool and same_host(host, here) for of, host in entries) for pool in POOLS}
    mine = [*divide_machine(_machine(here), own)] if any(own.values()) else []
    handed: Counter[str] = Counter()
    nodes, numbers = [], Counter[str]()
    for pool, host in entries:
        name = f"{pool}-{numbers[pool]}"
        numbers[pool] += 1
        if same_host(host, here):
            part = next(node for node in mine if node.pool == pool)
            mine.remove(part)
            nodes.append(Node(name, pool, host, part.cores, part.gpus, part.memory_gb, part.device, host))
            continue
        count = cluster.pools[pool].gpus_per_node
        known = next((other for other in handed if same_host(other, host)), host)
        gpus = tuple(range(handed[known], handed[known] + count))
        handed[known] += count
        nodes.append(Node(name, pool, host, (), gpus, 0.0, f"{count} GPU {cluster.pools[pool].gpu}".rstrip(), host))
    return tuple(nodes)


def more_nodes(hosts: HostsFile, cluster: Cluster, known: Collection[Node]) -> tuple[Node, ...]:
    """Return the nodes of hosts that were added at the ends of the lists.

    Args:
        hosts: Entries of the file.
        cluster: Cluster with its pools.
        known: All nodes that the service ever had. They stay, whatever the file says: nodes are removed by draining them.

    Raises:
        InputError: If an entry has changed, or a new one names a host that has nodes already, whose devices are assigned, or as in
            `nodes_of_hosts`; one line.
    """
    by_name, used = {node.name: node for node in known}, {node.host for node in known}
    new = []
    for node in nodes_of_hosts(hosts, cluster):
        old = by_name.get(node.name)
        if old is None and any(same_host(node.host, host) for host in used):
            raise InputError(f"hosts.{node.pool}: {node.host} has nodes already; new entries are of other hosts")
        if old is None:
            new.append(node)
        elif not same_host(old.host, node.host):
            raise InputError(f"hosts.{node.pool}: {node.name} is {old.host}, not {node.host}; new entries come at the end")
    return tuple(new)


def _machine(here: str) -> dict[str, Any]:
    """Return this machine in the form in which Ray lists machines."""
    resources = {"CPU": os.cpu_count() or 1, "GPU": device_count()}
    return {"NodeID": here, "Alive": True, "NodeManagerHostname": here, "Resources": resources}
