"""The flow solver against the plain one, and the properties that make rates max-min fair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.fabric.fairness import completion_s, fair_rates
from rollmux_env.kernel.tables import Ints
from tests.oracle import flows
from tests.oracle.draw import examples


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    """Paths, gigabytes and capacities of a few flows and links."""
    links = draw(st.integers(1, 6))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    paths = draw(st.lists(path, min_size=1, max_size=8))
    gb = draw(st.lists(st.integers(1, 9), min_size=len(paths), max_size=len(paths)))
    return paths, gb, draw(st.lists(st.integers(1, 12), min_size=links, max_size=links))


def padded(paths: list[list[int]]) -> Ints:
    return np.array([path + [-1] * (4 - len(path)) for path in paths], dtype=np.int64)


@examples(200)
@given(networks())
def test_rates_are_those_of_the_definition(network: tuple[list[list[int]], list[int], list[int]]) -> None:
    paths, _, capacity = network
    rates = fair_rates(padded(paths), np.array(capacity, float), np.ones(len(paths), np.int64))
    assert rates.tolist() == pytest.approx([float(rate) for rate in flows.fair_rates(paths, capacity)], rel=1e-9)


@examples(200)
@given(networks())
def test_no_link_is_above_its_capacity_and_every_flow_has_a_bottleneck(
    network: tuple[list[list[int]], list[int], list[int]],
) -> None:
    """A link that is full, and on which nobody has more: so rates are max-min fair, whatever the way they were found."""
    paths, _, capacity = network
    rates = fair_rates(padded(paths), np.array(capacity, float), np.ones(len(paths), np.int64))
    users = [[f for f, path in enumerate(paths) if link in path] for link in range(len(capacity))]
    loads = [sum(rates[f] for f in crossing) for crossing in users]
    assert all(load <= room * (1 + 1e-9) for load, room in zip(loads, capacity, strict=True))
    for f, path in enumerate(paths):
        assert any(
            loads[link] >= capacity[link] * (1 - 1e-9) and rates[f] >= max(rates[g] for g in users[link]) * (1 - 1e-9)
            for link in path
        )


@examples(200)
@given(networks())
def test_flows_end_when_they_do_by_definition(network: tuple[list[list[int]], list[int], list[int]]) -> None:
    paths, gb, capacity = network
    ends = completion_s(padded(paths), np.array(gb, float), np.array(capacity, float))
    assert ends.tolist() == pytest.approx([float(end) for end in flows.completion_s(paths, gb, capacity)], rel=1e-8)
    assert ends.tolist() == completion_s(padded(paths), np.array(gb, float), np.array(capacity, float)).tolist()


def test_flows_that_cross_nothing_or_move_nothing_end_at_once() -> None:
    paths = padded([[0], []])
    assert completion_s(paths, np.array([0.0, 5.0]), np.ones(1)).tolist() == [0.0, 0.0]
    assert fair_rates(paths, np.ones(1), np.array([0, 1])).tolist() == [0.0, np.inf]
