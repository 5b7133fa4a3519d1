"""The candidate table is Algorithm 1's search space, row by row; `cheapest` is its argmin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.cluster.candidates import REASONS, candidates, cheapest
from rollmux_env.cluster.events import Placement
from tests.oracle import draw as drawing
from tests.oracle import planner
from tests.oracle.draw import examples
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job, twins


def as_placement(choice: Any) -> Placement | None:
    """A choice of the naive planner as a placement."""
    if choice is None:
        return None
    strategy, _, after = choice
    job, nodes = after["members"][-1]["job"], after["members"][-1]["nodes"]
    if strategy == "isolated":
        return Placement(None, (), job["rollout"]["nodes"], job["training"]["nodes"], shape=job["shape"])
    old = tuple(n for n in nodes if any(n in m["nodes"] for m in after["members"][:-1]))
    return Placement(after["id"], old, len(nodes) - len(old), shape=job["shape"])


def naive_unpruned(rows: list[dict[str, Any]], job: dict[str, Any]) -> Placement | None:
    feasible = [row for row in rows if row["reason"] == "feasible"]
    if not feasible:
        return None
    best = min(feasible, key=lambda row: row["usd"])  # the first of the cheapest
    if best["group"] < 0:
        training_nodes = planner.in_shape(job, best["shape"])["training"]["nodes"]
        return Placement(None, (), best["new"], training_nodes, shape=best["shape"])
    return Placement(best["group"], best["old"], best["new"], shape=best["shape"])


@pytest.mark.parametrize("fine", [False, True])
@examples(150)
@given(data=st.data())
def test_table_is_the_plain_enumeration_and_cheapest_its_argmin_and_algorithm_1(fine: bool, data: st.DataObject) -> None:
    """In one test, since to draw a cluster takes longest."""
    twin = data.draw(twins(fine=fine))
    job = twin.arrive(data.draw(drawing.jobs("new", fine=fine, shaped=True, pooled=twin.pooled)))
    table = candidates(twin.state, "new")
    loads = {group.id: (group.load_s, group.cycle_s) for group in twin.state.group_list()} | {-1: (0.0, 0.0)}
    assert [*zip(table.load_s.tolist(), table.cycle_s.tolist(), strict=True)] == [loads[group] for group in table.group.tolist()]
    rows = planner.table(twin.cluster_left(), twin.groups, job)
    assert len(table) == len(rows)
    for k, row in enumerate(rows):
        assert REASONS[table.reason[k]] == row["reason"]
        assert (table.group[k], table.shape[k]) == (row["group"], row["shape"])
        assert bool(table.saturated[k]) == row["saturated"]
        assert tuple(node for node in table.nodes[k].tolist() if node >= 0) == row["old"]
        assert bool(table.is_group[k]) == (row["new"] is None)
        if row["new"] is not None:
            assert table.new_nodes[k] == row["new"]
            assert table.usd_per_hour[k] == row["usd"]
            assert table.period_s[k] == pytest.approx(row["period_s"], rel=1e-12)
            assert table.slack[k] == pytest.approx(row["slack"], rel=1e-9, abs=1e-9)
        else:
            assert np.isnan([table.usd_per_hour[k], table.period_s[k], table.slack[k]]).all()
    usd = np.where(table.feasible, table.usd_per_hour, np.inf)
    first = table.placement(int(usd.argmin())) if table.feasible.any() else None
    assert cheapest(twin.state, "new", prune=False) == first == naive_unpruned(rows, job)
    assert cheapest(twin.state, "new", prune=True) == as_placement(
        planner.choose(twin.cluster_left(), twin.groups, twin.groups_made, job)
    )


@examples(100)
@given(data=st.data())
def test_a_running_job_has_every_place_but_its_own_group(data: st.DataObject) -> None:
    twin = data.draw(twins())
    if not twin.running():
        return
    job, home = twin.find(data.draw(st.sampled_from(twin.running())))
    table = candidates(twin.state, job["id"])
    expected = planner.table(twin.cluster_left(), twin.groups, job)
    assert table.group.tolist() == [row["group"] for row in expected if row["group"] != home]
    assert [REASONS[r] for r in table.reason] == [row["reason"] for row in expected if row["group"] != home]


def place_all(twin: Twin, *jobs: tuple[dict[str, Any], Placement]) -> None:
    """Put (job, placement) pairs into the cluster."""
    for job, placement in jobs:
        twin.admit(twin.arrive(job), placement)


def test_interchangeable_nodes_count_once() -> None:
    """Nodes 0, 1 and 2 of a three-node job are alike: of the pairs of them only (0, 1) is a candidate."""
    twin = Twin(CLUSTER)
    place_all(twin, (make_job("wide", 5, 5, rollout={"nodes": 3}), Placement(None, (), 3, 1)))
    twin.arrive(make_job("two", 5, 5, rollout={"nodes": 2}, slo=4))
    table = candidates(twin.state, "two")
    shown = [(int(k), tuple(n for n in nodes if n >= 0)) for k, nodes in zip(table.new_nodes, table.nodes.tolist(), strict=True)]
    assert shown == [(0, (0, 1)), (1, (0,)), (2, ()), (2, ())]


def test_ties_go_to_the_oldest_group_and_the_lowest_nodes() -> None:
    twin = Twin(CLUSTER)
    twin.arrive(make_job("gone"))
    place_all(
        twin,
        (make_job("a", 5, 5, rollout={"nodes": 2}, slo=4), Placement(None, (), 2, 1)),
        (make_job("b", 5, 5, rollout={"nodes": 2}, slo=4), Placement(None, (), 2, 1)),
    )
    twin.arrive(make_job("new", 1, 1, slo=9))
    assert cheapest(twin.state, "new", prune=True) == Placement(0, (0,), 0)


def test_with_free_rollout_nodes_the_fewest_new_ones_win() -> None:
    """At a price of 0 every candidate costs the same: the first one that fits is taken, not a new group."""
    free = {pool: {"gpus_per_node": 8, "usd_per_gpu_hour": 0} for pool in ("rollout", "training")}
    twin = Twin(free)
    place_all(twin, (make_job("a", slo=4), Placement(None, (), 1, 1)))
    twin.arrive(make_job("new", 1, 1, slo=10))
    assert cheapest(twin.state, "new", prune=True) == Placement(0, (0,), 0)
    twin.arrive(make_job("strict", 3, 3, slo=1))
    assert cheapest(twin.state, "strict", prune=True) == Placement(None, (), 1, 1)


def test_a_saturated_group_is_left_out_only_when_pruning() -> None:
    """Two equal halves saturate a group: T_load = T_cycle = 20. A third would still keep every SLO."""
    twin = Twin(CLUSTER)
    place_all(twin, (make_job("a", slo=3), Placement(None, (), 1, 1)), (make_job("b", slo=3), Placement(0, (0,), 0)))
    twin.arrive(make_job("c", slo=3))
    assert cheapest(twin.state, "c", prune=True) == Placement(None, (), 1, 1)
    assert cheapest(twin.state, "c", prune=False) == Placement(0, (0,), 0)


@pytest.mark.parametrize(("nudge", "fits"), [(0, True), (5e-10, True), (2e-9, False)])
def test_slo_comparison_allows_a_relative_error_of_1e_9(nudge: float, fits: bool) -> None:
    twin = Twin(CLUSTER)
    place_all(twin, (make_job("a", 10, 10, slo=1), Placement(None, (), 1, 1)))
    twin.arrive(make_job("b", 1, 10 * (1 + 2 * nudge), slo=99))  # trainings: 10 + 10 (1 + 2 nudge) = 20 (1 + nudge)
    assert (cheapest(twin.state, "b", prune=False) == Placement(0, (0,), 0)) == fits


@pytest.mark.parametrize(("nudge", "saturated"), [(0, True), (5e-10, True), (2e-9, False)])
def test_saturation_allows_a_relative_error_of_1e_9(nudge: float, saturated: bool) -> None:
    twin = Twin(CLUSTER)
    place_all(
        twin,
        (make_job("a", 10, 10, slo=9), Placement(None, (), 1, 1)),
        (make_job("b", 1, 10 * (1 - 2 * nudge), slo=9), Placement(0, (0,), 0)),
    )
    assert twin.state.group_list()[0].saturated == saturated


@pytest.mark.parametrize("pool", ["rollout", "training"])
@pytest.mark.parametrize(("key", "limit"), [*planner.MEMORY.items()])
@pytest.mark.parametrize(("nudge", "fits"), [(0, True), (5e-10, True), (2e-9, False)])
def test_residency_allows_a_relative_error_of_1e_9(pool: str, key: str, limit: str, nudge: float, fits: bool) -> None:
    def keys(gb: float) -> dict[str, Any]:
        return {pool: {key: gb}}

    twin = Twin({**CLUSTER, pool: {**CLUSTER[pool], limit: 0.3}})
    place_all(twin, (make_job("a", slo=4, **keys(0.1)), Placement(None, (), 1, 1)))
    twin.arrive(make_job("b", 5, 5, slo=4, **keys(0.2 + 0.3 * nudge)))
    assert (cheapest(twin.state, "b", prune=True) == Placement(0, (0,), 0)) == fits


def test_a_zero_memory_node_holds_jobs_that_need_none() -> None:
    twin = Twin({**CLUSTER, "rollout": {**CLUSTER["rollout"], "node_memory_gb": 0}})
    place_all(twin, (make_job("a", slo=4), Placement(None, (), 1, 1)))
    twin.arrive(make_job("b", 5, 5, slo=4))
    assert cheapest(twin.state, "b", prune=True) == Placement(0, (0,), 0)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e9])
def test_the_choice_does_not_depend_on_the_unit_of_time(scale: float) -> None:
    twin = Twin(CLUSTER)
    place_all(
        twin,
        (make_job("a", 20 * scale, 11 * scale, slo=1.2), Placement(None, (), 1, 1)),
        (make_job("b", 13 * scale, 3 * scale, slo=4, rollout={"nodes": 3}), Placement(0, (0,), 2)),
    )
    twin.arrive(make_job("c", 20 * scale, 15 * scale, slo=1.1))
    # On node 1 the closed form says 35, within 1.1 * 35; the exact period is 39.5 and breaks both SLOs.
    table = candidates(twin.state, "c")
    assert table.period_s[:2] / scale == pytest.approx([53, 39.5])
    assert [REASONS[r] for r in table.reason[:2]] == ["an SLO would be broken"] * 2
    assert cheapest(twin.state, "c", prune=False) == Placement(0, (), 1)
