"""Whatever the numbers of ranks and workers, one copy of the weights crosses the link, and every worker gets all of it."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.residency.layout import WeightLayout
from runtime.sync.plan import Ranges, cut, length, make_plan, shard

LAYOUTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=6).map(
    lambda shapes: WeightLayout.of({f"t{k}": torch.empty(shape, device="meta") for k, shape in enumerate(shapes)})
)
RANKS = st.integers(1, 4)
NODES = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(  # so many workers on each node
    lambda counts: [f"rollout-{k}" for k, count in enumerate(counts) for _ in range(count)]
)


def numbers(ranges: Ranges) -> list[int]:
    return [byte for first, behind in ranges for byte in range(first, behind)]


def shards(layout: WeightLayout, ranks: int) -> list[Ranges]:
    return [shard(layout, rank, ranks) for rank in range(ranks)]


@given(LAYOUTS, RANKS)
def test_shards_are_disjoint_and_make_the_weights(layout: WeightLayout, ranks: int) -> None:
    held = [byte for ranges in shards(layout, ranks) for byte in numbers(ranges)]
    assert sorted(held) == [*range(layout.nbytes)]


@given(LAYOUTS, RANKS)
def test_a_shard_holds_the_rows_that_torch_gives_the_rank(layout: WeightLayout, ranks: int) -> None:
    every = torch.arange(layout.nbytes)
    for rank, ranges in enumerate(shards(layout, ranks)):
        rows = []
        for _, _, shape, start, end in layout.tensors:
            chunks = every[start:end].view(shape[0], -1).chunk(ranks)
            rows += chunks[rank].flatten().tolist() if rank < len(chunks) else []
        assert numbers(ranges) == rows


@given(LAYOUTS, RANKS, NODES)
def test_one_copy_crosses_the_link_and_everybody_has_all_of_it(layout: WeightLayout, ranks: int, nodes: list[str]) -> None:
    held = shards(layout, ranks)
    streams = make_plan(held, nodes, "aware")
    assert sum(stream.nbytes for stream in streams) == layout.nbytes
    assert sorted(byte for stream in streams for byte in numbers(stream.ranges)) == [*range(layout.nbytes)]
    for stream in streams:
        assert sorted(stream.way) == [*range(len(nodes))]
        assert stream.ranges == cut(held[stream.rank], stream.first, stream.first + stream.nbytes)
        passed = [nodes[k] for k in stream.way]
        borders = sum(one != other for one, other in pairwise(passed))
        assert borders == len(set(nodes)) - 1  # enters every node once
    assert len({stream.number for stream in streams}) == len(streams) <= max(ranks, len(nodes))
    parts = {rank: [stream.nbytes for stream in streams if stream.rank == rank] for rank in range(ranks)}
    assert all(max(sizes) - min(sizes) <= 1 for sizes in parts.values() if len(sizes) > 1)  # a rank cuts evenly


@given(LAYOUTS, RANKS, NODES)
def test_flat_takes_a_copy_for_every_node_from_the_first_rank(layout: WeightLayout, ranks: int, nodes: list[str]) -> None:
    streams = make_plan([((0, layout.nbytes),)] + [()] * (ranks - 1), nodes, "flat")
    assert sum(stream.nbytes for stream in streams) == layout.nbytes * len(set(nodes))
    assert {stream.rank for stream in streams} == {0}
    assert sorted(k for stream in streams for k in stream.way) == [*range(len(nodes))]


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 40), st.integers(0, 40))
def test_a_cut_takes_the_bytes_in_their_order(gaps: list[int], start: int, end: int) -> None:
    places = [sum(gaps[:k]) + k for k in range(len(gaps) + 1)]
    ranges = tuple(zip(places[::2], places[1::2], strict=False))
    assert numbers(cut(ranges, start, end)) == numbers(ranges)[start:end]
    assert length(ranges) == len(numbers(ranges))
