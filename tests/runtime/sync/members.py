"""Those who take part in a sync, in one process: every one a thread, and real connections over loopback between them."""

from __future__ import annotations

import secrets
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from runtime.residency.layout import Layout
from runtime.residency.staging import WeightStage
from runtime.sync.plan import Ranges, Topology, make_plan, shard
from runtime.sync.streams import Inbox, send_streams
from runtime.sync.wire import Transfer

HOST = "127.0.0.1"


def held_by(layout: Layout, ranks: int, topology: Topology) -> list[Ranges]:
    """What each rank holds: its shard, or all of it on the first."""
    if topology == "flat":
        return [((0, layout.nbytes),)] + [()] * (ranks - 1)
    return [shard(layout, rank, ranks) for rank in range(ranks)]


def part_of(data: Tensor, ranges: Ranges) -> Tensor:
    """The bytes in some ranges."""
    return torch.cat([data[first:behind] for first, behind in ranges] or [data[:0]])


class Members:
    """So many training ranks, and a rollout worker for each of some nodes' names."""

    def __init__(self, ranks: int, nodes: list[str]) -> None:
        self.ranks, self.nodes = ranks, nodes
        self.stages = [WeightStage() for _ in nodes]
        self.inboxes: list[Inbox] = []
        self._threads = ThreadPoolExecutor(ranks + len(nodes))

    def transfer(self, layout: Layout, version: int, topology: Topology) -> Transfer:
        """A sync that begins: the workers can be reached."""
        self.inboxes = [Inbox(HOST) for _ in self.nodes]
        plan = make_plan(held_by(layout, self.ranks, topology), self.nodes, topology)
        return Transfer(version, layout, plan, tuple(inbox.address for inbox in self.inboxes), secrets.token_bytes(32))

    def send(self, rank: int, transfer: Transfer, data: Tensor, topology: Topology, version: int | None = None) -> Future[int]:
        held = part_of(data, held_by(transfer.layout, self.ranks, topology)[rank])
        return self._threads.submit(send_streams, rank, transfer, transfer.version if version is None else version, held)

    def receive(self, worker: int, transfer: Transfer) -> Future[int]:
        return self._threads.submit(self.inboxes[worker].receive, worker, transfer, self.stages[worker])

    def close(self) -> None:
        self._threads.shutdown()
        for inbox in self.inboxes:
            inbox.close()
        for stage in self.stages:
            stage.close()
