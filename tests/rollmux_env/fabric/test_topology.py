"""Fabrics: what flows cross, what circuits are made, and what all of it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.fabric.fairness import fair_rates
from rollmux_env.fabric.topology import Circuits, Fabric, circuits_for, demand_between, fabric_usd, no_circuits, routes, traffic_s
from rollmux_env.fabric.traffic import Traffic
from rollmux_env.keys.fabric import Prices
from tests.oracle.draw import examples


def flows(*rows: tuple[int, int, float]) -> Traffic:
    source, target, gb = zip(*rows, strict=True)
    return Traffic(np.array(source), np.array(target), np.array(gb, dtype=float))


def small(**more: Any) -> Fabric:
    """Four leaves of four GPUs, two of each node."""
    return Fabric(**{"gpus": 16, "uplinks": 4, "gpus_per_node": 2, "gpus_per_leaf": 4, "link_gb_s": 10.0, **more})


def test_an_r_to_1_fat_tree_holds_up_what_leaves_a_leaf() -> None:
    """Four GPUs of a leaf send to another leaf: 100 GB each at 10 GB/s, or at what the uplinks leave of it."""
    away = flows(*((gpu, gpu + 4, 100) for gpu in range(4)))
    for uplinks, seconds in ((4, 10), (2, 20), (1, 40)):
        fabric = small(uplinks=uplinks)
        assert traffic_s(fabric, away, no_circuits(fabric)) == pytest.approx(seconds)
    inside = flows((0, 2, 100), (0, 1, 1e9))  # the second stays in its node
    assert traffic_s(small(uplinks=1), inside, no_circuits(small())) == pytest.approx(10)


def test_rails_join_equal_places_of_nodes() -> None:
    """Two rails of eight nodes in two leaves each; what goes to another place crosses over in the sender's node."""
    fabric = small(rails=True, uplinks=1)
    assert fabric.leaf_of(np.arange(16)).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3]
    assert traffic_s(fabric, flows((0, 2, 100), (1, 3, 100)), no_circuits(fabric)) == pytest.approx(10)
    paths, _ = routes(fabric, flows((0, 3, 100), (0, 10, 100)), no_circuits(fabric))
    assert paths.tolist() == [[1, 16 + 3, -1, -1], [0, 16 + 10, 32 + 0, 32 + 4 + 2]]
    assert traffic_s(fabric, flows(*((2 * k, 8 + 2 * k, 100) for k in range(4))), no_circuits(fabric)) == pytest.approx(40)


def test_circuits_carry_what_goes_between_the_leaves_that_they_join() -> None:
    fabric = small(uplinks=1, optical=2)
    away = flows(*((gpu, gpu + 4, 100) for gpu in range(4)))
    circuits = circuits_for("away", fabric, demand_between(fabric, away))
    assert circuits.between[0].tolist() == [0, 2, 0, 0]
    assert traffic_s(fabric, away, circuits) == pytest.approx(20)
    back = flows(*((gpu + 4, gpu, 100) for gpu in range(4)))
    both = Traffic(*(np.concatenate(columns) for columns in zip(away, back, strict=True)))
    assert traffic_s(fabric, both, circuits) == pytest.approx(20), "they carry as much either way"
    elsewhere = flows(*((gpu, gpu + 8, 100) for gpu in range(4)))
    assert traffic_s(fabric, elsewhere, circuits) == pytest.approx(40), "by the uplinks"


@st.composite
def demands(draw: st.DrawFn) -> tuple[Fabric, Traffic]:
    fabric = small(uplinks=draw(st.integers(1, 4)), optical=draw(st.integers(0, 6)), rails=draw(st.booleans()))
    gpu = st.integers(0, 15)
    rows = draw(st.lists(st.tuples(gpu, gpu, st.integers(1, 50)).filter(lambda row: row[0] != row[1]), min_size=1, max_size=12))
    return fabric, flows(*rows)


@examples(100)
@given(demands())
def test_no_leaf_has_more_circuits_than_ports_and_no_link_carries_too_much(drawn: tuple[Fabric, Traffic]) -> None:
    fabric, traffic = drawn
    demand = demand_between(fabric, traffic)
    circuits = circuits_for("any", fabric, demand)
    assert (circuits.between == circuits.between.T).all() and not circuits.between.diagonal().any()
    assert (circuits.between.sum(axis=1) <= fabric.optical).all() and not circuits.between[demand == 0].any()
    spare = fabric.optical - circuits.between.sum(axis=1)
    assert not ((spare[:, None] > 0) & (spare[None, :] > 0) & (demand > 0)).any(), "no port is left where one is wanted"
    paths, capacity = routes(fabric, traffic, circuits)
    rates = fair_rates(paths, capacity, (paths[:, 0] >= 0).astype(np.int64))
    loads = np.zeros(capacity.size)
    for path, rate in zip(paths, rates, strict=True):
        loads[path[path >= 0]] += rate
    assert (loads <= capacity * (1 + 1e-9)).all() and (rates[paths[:, 0] >= 0] > 0).all()


def test_prices_by_hand() -> None:
    access, uplink = 16 * (700 + 150), 700 + (700 + 2 * 500)
    assert fabric_usd(small()) == access + 16 * uplink
    assert fabric_usd(small(uplinks=1, optical=3)) == access + 4 * uplink + 12 * (700 + 500 + 500)
    assert fabric_usd(small(gpus=4)) == 4 * (700 + 150), "one leaf has nothing above it"
    assert fabric_usd(small(), Prices(radix=2)) == access + 16 * (700 + 2 * (700 + 2 * 500) + 700), "two layers"


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": 0},
        {"gpus": 18},
        {"uplinks": 0},
        {"optical": -1},
        {"link_gb_s": 0.0},
        {"gpus": 12, "rails": True},
        {"gpus_per_leaf": 3},
    ],
)
def test_a_fabric_that_is_none_is_one_line(more: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        small(**more)
    assert str(caught.value).startswith("fabric: ") and "\n" not in str(caught.value)


def test_a_topology_is_itself() -> None:
    assert no_circuits(small()) != no_circuits(small()) and isinstance(no_circuits(small()), Circuits)
