"""Whatever has happened, a state's columns are those of its present members, and its nodes are counted right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Moved, Placement, Reprofiled, Resumed, Withdrawn
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from tests.oracle import planner
from tests.oracle.draw import examples
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job, model, twins


@pytest.mark.parametrize("fine", [False, True])
@examples(120)
@given(data=st.data())
def test_columns_after_any_history_are_those_computed_from_scratch(fine: bool, data: st.DataObject) -> None:
    twin = data.draw(twins(max_jobs=20, fine=fine))
    state = twin.state
    assert [g.id for g in state.group_list()] == [g["id"] for g in twin.groups]
    assert state.tables.next_group_id == twin.groups_made
    for view, group in zip(state.group_list(), twin.groups, strict=True):
        assert view.jobs == tuple(m["job"]["id"] for m in group["members"])
        assert view.rollout_nodes == tuple(group["rollout_nodes"])
        assert view.training_nodes == group["training"]
        assert (view.rollout_pool, view.training_pool) == planner.pools_of(group)
        assert view.period_s == pytest.approx(planner.period_of(group), rel=1e-12)
        assert view.cycle_s == pytest.approx(planner.cycle_s(group), rel=1e-12)
        assert view.load_s == pytest.approx(planner.load_s(group), rel=1e-12)
        assert view.saturated == planner.is_saturated(group)
        assert view.usd_per_hour == pytest.approx(planner.group_usd_per_hour(twin.cluster, group), rel=1e-12)
        for member in group["members"]:
            assert state.pins(member["job"]["id"]) == tuple(sorted(member["nodes"]))
        check_row(state, group)
    for k, pool in enumerate(state.cluster.pools):
        held = sum(nodes[pool] for nodes in twin.held.values())
        assert state.nodes[k].sum() == planner.nodes_in_use(twin.groups, pool) + held
        assert state.pauses.held_nodes()[k].sum() == held


def check_row(state: State, group: dict[str, Any]) -> None:
    """The columns that no view shows."""
    row, table = state.tables.group_rows.get(group["id"]), state.tables.groups
    assert table.next_number[row] == group["next_node"]
    assert table.limit_s[row] == pytest.approx(min(m["job"]["slo"] * planner.solo_s(m["job"]) for m in group["members"]))
    for kind, key in (("gb", "host_memory_gb"), ("device_gb", "device_gb")):
        assert table[f"training_{kind}"][row] == pytest.approx(sum(m["job"]["training"][key] for m in group["members"]))
    for v, node in enumerate(group["rollout_nodes"]):
        pinned = [m["job"] for m in group["members"] if node in m["nodes"]]
        assert table.node_number[row, v] == node
        for kind, key in (("gb", "host_memory_gb"), ("device_gb", "device_gb")):
            assert table[f"node_{kind}"][row, v] == pytest.approx(sum(job["rollout"][key] for job in pinned))
        assert table.node_load_s[row, v] == pytest.approx(sum(job["rollout"]["worst_case_s"] for job in pinned))
        alike = [w for w, other in enumerate(group["rollout_nodes"][:v]) if members_on(group, other) == members_on(group, node)]
        assert table.node_before[row, v] == (alike[-1] if alike else -1)


def members_on(group: dict[str, Any], node: int) -> list[bool]:
    return [node in m["nodes"] for m in group["members"]]


def started(*pairs: tuple[dict[str, Any], Placement], cluster: dict[str, Any] = CLUSTER) -> Twin:
    twin = Twin(cluster)
    for job, placement in pairs:
        twin.admit(twin.arrive(job), placement)
    return twin


def test_nodes_are_given_back_and_their_numbers_never_used_again() -> None:
    twin = started(
        (make_job("a"), Placement(None, (), 1, 1)),
        (make_job("b", rollout={"nodes": 2}), Placement(0, (0,), 1)),
        (make_job("c", rollout={"nodes": 2}), Placement(0, (), 2)),
    )
    state = twin.state
    assert state.group_of("a").rollout_nodes == (0, 1, 2, 3)
    apply(state, Departed(1.0, "c"))
    assert state.group_of("a").rollout_nodes == (0, 1)
    assert (state.rollout_nodes, state.training_nodes) == (2, 1)
    apply(state, Arrived(1.0, model(make_job("d"))))
    apply(state, Admitted(1.0, "d", Placement(0, (), 1)))
    assert state.group_of("a").rollout_nodes == (0, 1, 4)
    apply(state, Departed(2.0, "a"))
    assert state.group_of("b").rollout_nodes == (0, 1, 4)  # b is still on node 0
    assert state.group_of("b").jobs == ("b", "d")


def test_a_group_number_is_never_used_again() -> None:
    twin = started((make_job("a"), Placement(None, (), 1, 2)))
    state = twin.state
    apply(state, Departed(1.0, "a"))
    assert (state.rollout_nodes, state.training_nodes, state.usd_per_hour) == (0, 0, 0)
    apply(state, Arrived(1.0, model(make_job("b"))))
    apply(state, Admitted(1.0, "b", Placement(None, (), 1, 1)))
    assert state.group_of("b").id == 1
    assert state.group_of("b").rollout_nodes == (0,)  # numbers count from 0 in every group


def test_training_nodes_stay_until_the_group_is_empty() -> None:
    twin = started(
        (make_job("wide", training={"nodes": 3}), Placement(None, (), 1, 3)), (make_job("narrow"), Placement(0, (0,), 0))
    )
    apply(twin.state, Departed(1.0, "wide"))
    assert twin.state.group_of("narrow").training_nodes == 3


def test_training_is_rescaled_to_the_largest_known_size_not_above_the_pool() -> None:
    job = make_job("b", 10, 40, training={"by_nodes": {2: 25, 4: 15}})
    for pool, period_s in [(1, 50), (2, 35), (3, 35), (4, 25), (9, 25)]:
        twin = started((job, Placement(None, (), 1, pool)))
        assert twin.state.group_of("b").period_s == period_s
        assert twin.state.group_of("b").cycle_s == 50  # T_solo is at the job's own node counts


def test_progress_follows_the_period_of_each_stretch() -> None:
    twin = started((make_job("a", 10, 10), Placement(None, (), 1, 1)))
    state = twin.state
    apply(state, Arrived(30.0, model(make_job("b", 15, 15))))
    apply(state, Admitted(30.0, "b", Placement(0, (0,), 0)))  # 1.5 iterations of a; from here on the period is 30
    apply(state, Departed(75.0, "b"))
    state.now_s = 95.0
    assert state.iterations_done("a") == pytest.approx(1.5 + 1.5 + 1.0)


def test_a_moved_job_pauses_and_the_nodes_that_it_left_are_held() -> None:
    twin = started(
        (make_job("a", duration_s=1000), Placement(None, (), 1, 1)),
        (make_job("b", 5, 5), Placement(None, (), 1, 1)),
        cluster={**CLUSTER, "migration_s": 50},
    )
    state = twin.state
    apply(state, Moved(100.0, "a", Placement(1, (0,), 0)))
    assert state.group_of("a").jobs == ("b", "a")  # it comes last, at once
    assert [g.id for g in state.group_list()] == [1]
    assert (state.rollout_nodes, state.training_nodes) == (2, 2)
    assert state.pauses.held_nodes().tolist() == [[1, 0], [0, 1]]
    assert state.is_paused("a")
    state.now_s = 150.0
    assert state.iterations_done("a") == 5  # 100 s alone at 20 s an iteration; the pause adds none
    assert state.pauses.next_end_s() == 150
    apply(state, Resumed(150.0, "a"))
    assert (state.rollout_nodes, state.training_nodes) == (1, 1)
    assert not state.pauses.held_nodes().any()
    assert not state.is_paused("a")
    assert state.tables.departing(1050.0 - 1e-9) == ["b"]
    assert set(state.tables.departing(1050.0)) == {"a", "b"}  # 1000 s and the pause


def test_order_of_admission_is_kept_after_departures_and_a_mover_comes_last() -> None:
    """Four jobs whose period depends on their order, so that a wrong order would show."""
    twin = started(
        (make_job("a", 20, 11, rollout={"nodes": 1}), Placement(None, (), 1, 1)),
        (make_job("b", 13, 3, rollout={"nodes": 3}), Placement(0, (0,), 2)),
        (make_job("c", 20, 15), Placement(0, (1,), 0)),
    )
    assert twin.state.group_list()[0].period_s == 39.5
    twin.depart("b")
    twin.admit(twin.arrive(make_job("d", 13, 3, rollout={"nodes": 2})), Placement(0, (0, 1), 0))
    assert twin.state.group_list()[0].jobs == ("a", "c", "d")
    assert twin.state.group_list()[0].period_s == pytest.approx(planner.period_of(twin.groups[0]))


def test_a_job_that_is_withdrawn_leaves_the_queue_to_the_others() -> None:
    twin = started((make_job("a"), Placement(None, (), 1, 1)))
    state = twin.state
    for name in "bc":
        twin.arrive(make_job(name))
    apply(state, Withdrawn(1.0, "b"))
    assert state.waiting == ["c"] and state.knows("b") and not state.is_running("b")


def test_a_job_is_planned_by_its_newest_times_from_then_on() -> None:
    twin = started((make_job("a", 10, 10, slo=3), Placement(None, (), 1, 1)), (make_job("b", 5, 5), Placement(0, (0,), 0)))
    state = twin.state
    state.now_s = 40.0  # two iterations of 20 s
    twin.reprofile(make_job("a", 10, 30, slo=3))
    assert state.group_of("a").period_s == 40
    assert state.tables.jobs.limit_s[state.row("a")] == 120 and state.tables.jobs.placed_training_s[state.row("a")] == 30
    state.now_s = 120.0
    assert state.iterations_done("a") == pytest.approx(2 + 2)
    twin.arrive(make_job("c"))
    apply(state, Reprofiled(120.0, model(make_job("c", 7, 8))))
    assert state.waiting == ["c"] and state.job("c").solo_s == 15
    apply(state, Admitted(120.0, "c", Placement(None, (), 1, 1)))
    assert state.group_of("c").period_s == 15


def test_a_colocated_job_is_planned_by_its_newest_times_too() -> None:
    state = started((make_job("a", 10, 10), Placement(None, training_nodes=1, colocated=True))).state
    apply(state, Reprofiled(0.0, model(make_job("a", 12, 10))))
    assert state.group_of("a").period_s == 22


def test_a_copy_goes_its_own_way() -> None:
    state = started((make_job("a"), Placement(None, (), 1, 1)), (make_job("b"), Placement(0, (0,), 0))).state
    other = state.copy()
    apply(other, Departed(30.0, "a"))
    apply(other, Arrived(30.0, model(make_job("c"))))
    apply(other, Admitted(30.0, "c", Placement(None, (), 1, 1)))
    assert [g.jobs for g in state.group_list()] == [("a", "b")]
    assert [g.jobs for g in other.group_list()] == [("b",), ("c",)]
    assert (state.now_s, state.rollout_nodes, state.departed, state.waiting) == (0, 1, 0, [])
    assert not state.knows("c")


def test_a_state_grows_beyond_its_first_tables() -> None:
    state = State(model_cluster())
    for k in range(200):
        nodes = 1 + k % 7
        job = make_job(f"j{k}", rollout={"nodes": nodes}, training={"by_nodes": {n: 5 for n in range(2, 3 + k % 3)}})
        apply(state, Arrived(0.0, model(job)))
        apply(state, Admitted(0.0, f"j{k}", Placement(None, (), nodes, 1)))
    assert len(state.group_list()) == 200
    assert all(len(g.rollout_nodes) == 1 + k % 7 and g.period_s == 20 for k, g in enumerate(state.group_list()))


def model_cluster() -> Cluster:
    return Twin(CLUSTER).state.cluster


def test_the_first_arrival_stays_the_first_when_its_job_arrives_again() -> None:
    state = State(model_cluster())
    assert state.first_arrival_s == float("inf")
    apply(state, Arrived(5.0, model(make_job("a", arrival_s=5.0))))
    apply(state, Withdrawn(6.0, "a"))
    apply(state, Arrived(3600.0, model(make_job("a", arrival_s=3600.0))))
    assert state.first_arrival_s == 5.0
