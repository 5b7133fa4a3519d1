"""Ray cluster of chaos.py: raylets on this machine, one for each node, which can be killed one by one or all at once."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

_OBJECTS = 80 << 20  # size of a node's object store, in bytes


@dataclass
class Pools:
    """Ray cluster of raylets on this machine: a head that is not a node, and the nodes of both pools.

    Args:
        nodes: Number of nodes in each pool. With one node each, the head serves as both.

    Attributes:
        cluster: Ray's cluster, None before the start.
        pools: Ray nodes that are alive, with their pool.
    """

    nodes: int
    cluster: Any = None
    pools: dict[Any, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start the head and all nodes."""
        both = {"rollout_node": 1.0, "training_node": 1.0} if self.nodes == 1 else {}
        args = {"num_cpus": 2 if both else 0, "resources": both, "include_dashboard": False, "object_store_memory": _OBJECTS}
        self.cluster, self.pools = Cluster(initialize_head=True, head_node_args=args, shutdown_at_exit=False), {}
        self.mend()

    def mend(self) -> None:
        """Replace the nodes that were killed."""
        for pool in ("rollout", "training") if self.nodes > 1 else ():
            for _ in range(self.nodes - [*self.pools.values()].count(pool)):
                resources = {f"{pool}_node": 1.0}
                self.pools[self.cluster.add_node(num_cpus=1, object_store_memory=_OBJECTS, resources=resources)] = pool

    def kill(self, node: Any = None) -> None:
        """Kill a node and everything on it, or with None all of Ray."""
        for one in [node] if node else [*self.pools, self.cluster.head_node]:
            pids = [started.process.pid for processes in one.all_processes.values() for started in processes]
            for pid in [*pids, *(pid for parent in pids for pid, _ in children(parent))]:
                kill(pid)
            one.kill_all_processes(check_alive=False, allow_graceful=False)
            self.pools.pop(one, None)
            self.cluster.worker_nodes.discard(one)

    def stop(self) -> None:
        """Kill all of Ray."""
        self.kill()

    def actors(self, title: str) -> list[int]:
        """Return the process ids of actors whose title begins with `title`."""
        raylets = [node.all_processes["raylet"][0].process.pid for node in [self.cluster.head_node, *self.pools]]
        return sorted(pid for raylet in raylets for pid, name in children(raylet) if name.startswith(title))


def children(parent: int) -> list[tuple[int, str]]:
    """Return the process ids and titles of a process's children."""
    processes = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                processes.append((int(entry.name), (entry / "cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")))
    return processes


def kill(pid: int) -> None:
    """Kill a process if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
