"""Those who take part in a sync, in one process: every one a thread, and real connections over loopback between them.

Each thread has a machine, by name: those who have the same one can read each other's memory.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from rollmux_segment import Segment
from torch import Tensor

from runtime.residency.layout import WeightLayout, WeightMemory
from runtime.residency.staging import WeightStage
from runtime.sync.plan import Ranges, Topology, make_plan, shard
from runtime.sync.streams import Inbox, send_streams
from runtime.sync.wire import Transfer

HOST = "127.0.0.1"
_HERE = threading.local()


def memory_id() -> bytes:
    """In place of `runtime.machine.memory_id`: of the machine that this thread is on."""
    return str(_HERE.machine).encode().ljust(16)


def held_by(layout: WeightLayout, ranks: int, topology: Topology) -> list[Ranges]:
    """What each rank holds: its shard, or all of it on the first."""
    if topology == "flat":
        return [((0, layout.nbytes),)] + [()] * (ranks - 1)
    return [shard(layout, rank, ranks) for rank in range(ranks)]


def part_of(data: Tensor, ranges: Ranges) -> Tensor:
    """The bytes in some ranges."""
    return torch.cat([data[first:behind] for first, behind in ranges] or [data[:0]])


class Members:
    """So many training ranks, and a rollout worker for each of some nodes' names.

    Args:
        machines: of the ranks; else each has its own.
    """

    def __init__(self, ranks: int, nodes: list[str], machines: list[str] | None = None) -> None:
        self.ranks, self.nodes = ranks, nodes
        self.machines = machines or [f"rank {rank}" for rank in range(ranks)]
        self.stages = [WeightStage() for _ in nodes]
        self.inboxes: list[Inbox] = []
        self._segments: list[Segment] = []
        self._threads = ThreadPoolExecutor(ranks + len(nodes))

    def transfer(self, layout: WeightLayout, version: int, topology: Topology) -> Transfer:
        """A sync that begins: the workers can be reached."""
        self.inboxes = [Inbox(HOST) for _ in self.nodes]
        plan = make_plan(held_by(layout, self.ranks, topology), self.nodes, topology)
        return Transfer(version, layout, plan, tuple(inbox.address for inbox in self.inboxes), secrets.token_bytes(32))

    def send(self, rank: int, transfer: Transfer, data: Tensor, topology: Topology, version: int | None = None) -> Future[int]:
        held = part_of(data, held_by(transfer.layout, self.ranks, topology)[rank])
        self._segments.append(Segment(max(len(held), 1)))
        memory, kept = WeightMemory(self._segments[-1].file), self._segments[-1].bytes[: len(held)]
        kept.copy_(held)
        number = transfer.version if version is None else version
        return self._threads.submit(_on, self.machines[rank], send_streams, rank, transfer, number, kept, memory)

    def receive(self, worker: int, transfer: Transfer) -> Future[int]:
        receive = self.inboxes[worker].receive
        return self._threads.submit(_on, self.nodes[worker], receive, worker, transfer, self.stages[worker])

    def is_local(self, rank: int, worker: int) -> bool:
        """Whether a worker can read a rank's memory."""
        return self.machines[rank] == self.nodes[worker]

    def close(self) -> None:
        self._threads.shutdown()
        for inbox in self.inboxes:
            inbox.close()
        for stage in self.stages:
            stage.close()
        for segment in self._segments:
            segment.close()


def _on(machine: str, function: Callable[..., int], *arguments: Any) -> int:
    _HERE.machine = machine
    return function(*arguments)
