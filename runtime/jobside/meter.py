"""Measurements of the processes of a job: memory of the host and of GPUs, and seconds without a core."""

from __future__ import annotations

from typing import Any

import ray
from rollmux_segment import Footprint

from runtime.jobside.messages import Nodes
from runtime.jobside.worker import ActorHandle
from runtime.machine import Pool, core_wait_s
from runtime.memory import resident_gb

Usage = dict[ActorHandle, tuple[float, float]]
"""Memory in GB, and seconds without a core so far, of each worker."""
Used = tuple[float, float, float]  # GB used of a node's host memory and of each GPU, and GB of each GPU that are not free
_OTHER: dict[Pool, Pool] = {"rollout": "training", "training": "rollout"}


class ProcessMeter:
    """A meter of a job's processes: its workers, or this process if it has none.

    Args:
        workers: Workers of the job, which may change.

    Attributes:
        nodes: Nodes of the job's placement.
    """

    def __init__(self, workers: list[ActorHandle]) -> None:
        self.nodes: Nodes = {}
        self._workers = workers
        self._waited_s: dict[ActorHandle | None, float] = {}  # last known seconds without a core, of workers or this process (None)
        self._own_gb: dict[Pool, float] = {}  # memory of this process, by the pool to which it is counted

    def usage(self, pool: Pool) -> Usage:
        """Return memory in GB and seconds without a core of each of the job's processes for a phase on its nodes."""
        names, others = ({node.name for node in self.nodes[one]} for one in (pool, _OTHER[pool]))
        mine = []
        for handle in self._workers:
            started_for: Pool = "training" if handle.where == "training" else "rollout"
            name = handle.node.name  # a worker may have a part of a node, and a node may run both phases
            if name in names and (name not in others or started_for == pool):
                mine.append(handle)
        return dict(zip(mine, ray.get([handle.actor.usage.remote() for handle in mine]), strict=True))

    def used(self, pool: Pool, footprint: Any, usage: Usage | None = None) -> Used:
        """Return the memory that the job uses on its fullest node, as `Used`.

        Host memory is that of its processes, and the state that waits there for the next phase. On a node without GPUs, the state
        on the device is host memory too.
        """
        by_node: dict[str, float] = {}
        for handle, (own_gb, _) in (self.usage(pool) if usage is None else usage).items():
            by_node[handle.node.name] = by_node.get(handle.node.name, 0.0) + own_gb
        own_gb = max(by_node.values(), default=0.0)
        if not by_node and not self._workers:
            counted = self._own_gb.get(_OTHER[pool], 0.0) if self.nodes[pool] == self.nodes[_OTHER[pool]] else 0.0
            own_gb = self._own_gb[pool] = max(0.0, resident_gb() - counted)
        if not isinstance(footprint, Footprint):
            return own_gb, 0.0, 0.0
        gpus = self.gpus(pool)
        device_gb = footprint.device / 1e9 / gpus if gpus else 0.0
        return own_gb + (footprint.host - footprint.mapped) / 1e9, device_gb, footprint.taken / 1e9

    def gpus(self, pool: Pool) -> int:
        """Return the number of GPUs of a phase's node."""
        return min(len(node.gpus) for node in self.nodes[pool])

    def waited_s(self, usage: Usage) -> float:
        """Return the largest number of seconds that one of the processes was without a core since the last call."""
        waits_s: dict[ActorHandle | None, float] = {handle: waited_s for handle, (_, waited_s) in usage.items()}
        waits_s = waits_s or {None: core_wait_s()}
        longest_s = max(waited_s - self._waited_s.get(who, 0.0) for who, waited_s in waits_s.items())
        self._waited_s |= waits_s
        return longest_s
