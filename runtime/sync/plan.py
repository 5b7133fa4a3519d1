"""Plan of a weight sync: which bytes go from which training rank to which rollout workers, and in which order.

The bytes are those of a `runtime.residency.layout.WeightLayout`, numbered from 0. There are two topologies. `aware` is the
topology-aware sync of the RollMux paper: the ranks' disjoint shards cross the slow link once, in parallel streams, and the rollout
workers pass them on to each other. `flat` is the baseline: rank 0 sends everything to every rollout node.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.residency.layout import WeightLayout

Topology = Literal["aware", "flat"]
Ranges = tuple[tuple[int, int], ...]
"""Parts of the weights, each as (first byte, end): ascending, disjoint, none empty."""


@dataclass(frozen=True)
class WeightStream:
    """A part of the weights and the workers through which it goes.

    Attributes:
        number: Number of the stream, from 0.
        rank: Training rank that sends the stream.
        way: Rollout workers in the order in which they receive the stream. The first receives it from the rank over the slow link,
            and each further one from the worker before it.
        ranges: Bytes of the stream, in the order in which they are sent.
        first: Number of the rank's bytes that go into the rank's earlier streams.
    """

    number: int
    rank: int
    way: tuple[int, ...]
    ranges: Ranges
    first: int

    @property
    def nbytes(self) -> int:
        """Number of bytes in the stream."""
        return length(self.ranges)


def make_plan(parts: Sequence[Ranges], nodes: Sequence[Hashable], topology: Topology, least: int = 1) -> tuple[WeightStream, ...]:
    """Return the streams of a sync.

    With `aware`, there are as many streams as ranks or workers, whichever are more, so that all of them take part. A rank with
    several streams cuts its bytes evenly. Every byte crosses the slow link once, and enters every further node once. With `flat`,
    there is one stream for each rollout node. Streams without bytes are left out.

    Args:
        parts: Bytes that each training rank holds. `flat` uses only those of rank 0, which must hold everything.
        nodes: Rollout node of each rollout worker. Workers of the same node follow each other.
        topology: Topology of the sync.
        least: Smallest number of streams of `aware`. Each stream takes a connection and a thread.
    """
    if topology == "flat":
        firsts = [k for k, node in enumerate(nodes) if node not in nodes[:k]]
        ways = [tuple(k for k, node in enumerate(nodes) if node == nodes[first]) for first in firsts]
        streams = [WeightStream(number, 0, way, parts[0], 0) for number, way in enumerate(ways)]
    else:
        count = max(len(parts), len(nodes), least)
        streams = []
        for number in range(count):
            rank = number % len(parts)
            mine = range(rank, count, len(parts))  # numbers of this rank's streams
            total, place = length(parts[rank]), mine.index(number)
            start, end = total * place // len(mine), total * (place + 1) // len(mine)
            streams.append(WeightStream(number, rank, _way(number % len(nodes), nodes), cut(parts[rank], start, end), start))
    return tuple(stream for stream in streams if stream.ranges)


def shard(layout: WeightLayout, rank: int, world: int) -> Ranges:
    """Return the bytes that a rank of FSDP2 holds: of each tensor, the rows that `torch.chunk` gives it along the first dimension.

    Args:
        layout: Layout of the whole weights.
        rank: Number of the rank.
        world: Number of ranks.
    """
    ranges = []
    for _, _, shape, start, end in layout.tensors:
        rows = shape[0] if shape else 1
        size = (end - start) // max(rows, 1)  # bytes of a row
        chunk = -(-rows // world)
        first, behind = min(rank * chunk, rows), min((rank + 1) * chunk, rows)
        ranges.append((start + first * size, start + behind * size))
    return _joined(ranges)


def cut(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the `start`-th to `end`-th byte, exclusive, of the bytes in `ranges`."""
    parts, before = [], 0
    for first, behind in ranges:
        low, high = max(start - before, 0), min(end - before, behind - first)
        if low < high:
            parts.append((first + low, first + high))
        before += behind - first
    return tuple(parts)


def length(ranges: Ranges) -> int:
    """Return the number of bytes in `ranges`."""
    return sum(behind - first for first, behind in ranges)


def _way(entry: int, nodes: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the way of a stream that enters at a worker: round the other workers of its node, then node by node."""
    there = [*range(entry, len(nodes)), *range(entry)]
    own = [k for k in there if nodes[k] == nodes[entry]]
    order = list(dict.fromkeys(nodes[k] for k in there if nodes[k] != nodes[entry]))
    return (*own, *(k for node in order for k in range(len(nodes)) if nodes[k] == node))


def _joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return ranges without the empty ones, and with adjacent ones merged."""
    ranges_out: list[tuple[int, int]] = []
    for first, behind in ranges:
        if first == behind:
            continue
        if ranges_out and ranges_out[-1][1] == first:
            first = ranges_out.pop()[0]
        ranges_out.append((first, behind))
    return tuple(ranges_out)
