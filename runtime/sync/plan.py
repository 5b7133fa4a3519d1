"""Which bytes of new weights go from which training rank to which rollout worker, and by which way.

The bytes are those of a `runtime.residency.layout.Layout`, numbered from 0. `aware` is the RollMux paper's topology-aware sync:
the ranks' disjoint shards cross the slow link once, in parallel streams, and the rollout workers pass them on to each other. `flat`
is what it is compared with: every rollout node gets everything from rank 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.residency.layout import Layout

Topology = Literal["aware", "flat"]
Ranges = tuple[tuple[int, int], ...]
"""(first byte, behind the last) of parts of the weights: ascending, disjoint, none empty."""


@dataclass(frozen=True)
class Stream:
    """Some bytes of the weights and their way.

    Attributes:
        number: of the stream, from 0.
        rank: the training rank that sends it.
        way: rollout workers in the order in which they have it: the first from the rank, over the link; each next one from the one
            before it.
        ranges: its bytes, in this order.
        first: how many bytes of its ranges the rank has given to earlier streams.
    """

    number: int
    rank: int
    way: tuple[int, ...]
    ranges: Ranges
    first: int

    @property
    def nbytes(self) -> int:
        """Bytes in it."""
        return length(self.ranges)


def make_plan(parts: Sequence[Ranges], nodes: Sequence[Hashable], topology: Topology, least: int = 1) -> tuple[Stream, ...]:
    """The streams of a sync.

    Args:
        parts: what each training rank holds; `flat` looks at rank 0 alone, which has to hold everything.
        nodes: the rollout node of each rollout worker; workers of a node stand together.
        least: streams of `aware` at least, each with a connection and a thread of its own.

    Returns:
        `aware`: as many streams as there are ranks or workers, whichever are more, so that all of them take part; a rank that has
        several cuts its bytes evenly. Every byte crosses the link once, and enters every further node once. `flat`: one a node.
        Streams without bytes are left out.
    """
    if topology == "flat":
        firsts = [k for k, node in enumerate(nodes) if node not in nodes[:k]]
        ways = [tuple(k for k, node in enumerate(nodes) if node == nodes[first]) for first in firsts]
        streams = [Stream(number, 0, way, parts[0], 0) for number, way in enumerate(ways)]
    else:
        count = max(len(parts), len(nodes), least)
        streams = []
        for number in range(count):
            rank = number % len(parts)
            mine = range(rank, count, len(parts))  # numbers of the rank's streams
            total, place = length(parts[rank]), mine.index(number)
            start, end = total * place // len(mine), total * (place + 1) // len(mine)
            streams.append(Stream(number, rank, _way(number % len(nodes), nodes), cut(parts[rank], start, end), start))
    return tuple(stream for stream in streams if stream.ranges)


def shard(layout: Layout, rank: int, world: int) -> Ranges:
    """The bytes that a rank of FSDP2 holds: of each tensor the rows that `torch.chunk` along the first dimension gives it."""
    ranges = []
    for _, _, shape, start, end in layout.tensors:
        rows = shape[0] if shape else 1
        size = (end - start) // max(rows, 1)  # bytes of a row
        chunk = -(-rows // world)
        first, behind = min(rank * chunk, rows), min((rank + 1) * chunk, rows)
        ranges.append((start + first * size, start + behind * size))
    return _joined(ranges)


def cut(ranges: Ranges, start: int, end: int) -> Ranges:
    """Of the bytes in some ranges, those from the `start`-th up to the `end`-th."""
    parts, before = [], 0
    for first, behind in ranges:
        low, high = max(start - before, 0), min(end - before, behind - first)
        if low < high:
            parts.append((first + low, first + high))
        before += behind - first
    return tuple(parts)


def length(ranges: Ranges) -> int:
    """Bytes in some ranges."""
    return sum(behind - first for first, behind in ranges)


def _way(entry: int, nodes: Sequence[Hashable]) -> tuple[int, ...]:
    """From the worker where a stream enters: round the others of its node, then node by node round the rest."""
    there = [*range(entry, len(nodes)), *range(entry)]
    own = [k for k in there if nodes[k] == nodes[entry]]
    order = list(dict.fromkeys(nodes[k] for k in there if nodes[k] != nodes[entry]))
    return (*own, *(k for node in order for k in range(len(nodes)) if nodes[k] == node))


def _joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Without empty ranges, and with neighbours made one."""
    ranges_out: list[tuple[int, int]] = []
    for first, behind in ranges:
        if first == behind:
            continue
        if ranges_out and ranges_out[-1][1] == first:
            first = ranges_out.pop()[0]
        ranges_out.append((first, behind))
    return tuple(ranges_out)
