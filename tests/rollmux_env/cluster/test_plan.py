"""Plans are refused with the number of the invariant that they break; legal ones happen as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Departed, Moved, Placement, Resumed
from rollmux_env.cluster.plan import Action, Move, Place, Plan, Wait, after, carry_out, may_move
from rollmux_env.cluster.snapshot import Snapshot
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from tests.oracle.planner import MEMORY
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job

OWN = Placement(None, (), 1, 1)
JOIN = Placement(0, (0,), 0)


def started(
    *pairs: tuple[dict[str, Any], Placement],
    waiting: Sequence[dict[str, Any]] = (),
    cluster: dict[str, Any] = CLUSTER,
    now_s: float = 0.0,
) -> State:
    """A state at `now_s` with (job, placement) pairs running since 0 and others waiting."""
    twin = Twin(cluster)
    for job, placement in pairs:
        twin.admit(twin.arrive(job), placement)
    twin.state.now_s = now_s
    for job in waiting:
        twin.arrive(job)
    return twin.state


def refused(state: State, *plan: Action, keeps_slo: bool = True) -> str:
    with pytest.raises(PlanError) as error:
        carry_out(state, plan, keeps_slo)
    message = str(error.value)
    assert "\n" not in message
    return message.split(":")[0]


def test_a_plan_is_tried_without_being_carried_out() -> None:
    state = started((make_job("runs"), OWN), waiting=[make_job("first"), make_job("new")], now_s=10_000)
    before = state.group_list()
    joined = after(state, (Place("new", JOIN),))
    assert joined.group_of("new").jobs == ("runs", "new") and joined.waiting == ["first"]
    assert [sum(group.usd_per_hour for group in one.group_list()) for one in (joined, after(state, (Place("new", OWN),)))] == [
        before[0].usd_per_hour,
        2 * before[0].usd_per_hour,
    ]
    assert state.group_list() == before and state.waiting == ["first", "new"]
    with pytest.raises(PlanError, match=r"^P1"):
        after(state, (Place("runs", OWN),))
    assert after(Snapshot(state), ()).group_list() == before


@pytest.mark.parametrize(
    "plan",
    [
        (Place("new", OWN), Place("new", OWN)),
        (Place("new", OWN), Wait("new")),
        (Place("runs", OWN),),
        (Place("unknown", OWN),),
        (Wait("runs"),),
        (Move("new", OWN),),
        (Move("unknown", OWN),),
    ],
)
def test_p1_each_job_once_and_in_the_right_state(plan: Plan) -> None:
    state = started((make_job("runs"), OWN), waiting=[make_job("new")], now_s=10_000)
    assert refused(state, *plan) == "P1"


def test_p1_a_paused_job_does_not_move() -> None:
    state = started((make_job("a", slo=4), OWN), (make_job("b", 1, 1, slo=99), OWN), now_s=1000)
    carry_out(state, (Move("a", Placement(1, (0,), 0)),), True)
    assert refused(state, Move("a", OWN)) == "P1"


def test_p1_a_departed_job_does_not_come_back() -> None:
    state = started((make_job("a"), OWN))
    apply(state, Departed(1.0, "a"))
    assert refused(state, Place("a", OWN)) == "P1"


@pytest.mark.parametrize(
    "placement",
    [
        Placement(None, (), 1, 2),  # too few rollout nodes
        Placement(None, (), 3, 2),  # too many
        Placement(None, (), 2, 1),  # too few training nodes
        Placement(None, (0,), 1, 2),  # existing nodes of a group that does not exist
        Placement(7, (0, 1), 0),  # no such group
        Placement(0, (0, 3), 0),  # no such node
        Placement(0, (0, 0), 0),  # one node twice
        Placement(0, (1, 0), 0),  # not ascending
        Placement(0, (0, 1, 2), -1),
        Placement(1, (0,), 1),  # a group with one training node
        Placement(None, (), 0, 9, colocated=True),  # co-located on other than its own count
        Placement(0, (), 0, 2, colocated=True),
        Placement(None, (0,), 0, 2, colocated=True),
    ],
)
def test_p2_nodes_exist_and_are_as_many_as_the_job_asks_for(placement: Placement) -> None:
    state = started(
        (make_job("wide", rollout={"nodes": 3}, training={"nodes": 2}, slo=9), Placement(None, (), 3, 2)),
        (make_job("narrow", slo=9), OWN),
        waiting=[make_job("new", rollout={"nodes": 2}, training={"nodes": 2}, slo=9)],
    )
    assert refused(state, Place("new", placement)) == "P2"


def test_p2_nobody_joins_a_colocated_job() -> None:
    state = started(waiting=[make_job("a"), make_job("b")])
    carry_out(state, (Place("a", Placement(None, training_nodes=1, colocated=True)),), False)
    assert refused(state, Place("b", Placement(0, (), 1))) == "P2"


@pytest.mark.parametrize("alone", [True, False])
def test_p2_a_job_does_not_move_within_its_group(alone: bool) -> None:
    """Its nodes are given up before it comes in, so there may be neither group nor node to come to."""
    pairs = [(make_job("a", slo=9, rollout={"nodes": 1}), OWN)] + ([] if alone else [(make_job("b", slo=9), Placement(0, (), 1))])
    state = started(*pairs, now_s=1000)
    assert refused(state, Move("a", Placement(0, (0,), 0))) == "P2"


def test_p3_group_size() -> None:
    cluster = {**CLUSTER, "max_group_size": 2}
    state = started((make_job("a", slo=9), OWN), (make_job("b", slo=9), JOIN), waiting=[make_job("c", slo=9)], cluster=cluster)
    assert refused(state, Place("c", JOIN)) == "P3"


@pytest.mark.parametrize("pool", ["rollout", "training"])
@pytest.mark.parametrize(("key", "limit"), [*MEMORY.items()])
def test_p4_memory(pool: str, key: str, limit: str) -> None:
    cluster = {**CLUSTER, pool: {**CLUSTER[pool], limit: 500}}
    memory: dict[str, Any] = {pool: {key: 250.1}}
    jobs = [make_job(name, slo=9, **memory) for name in "ab"]
    state = started((jobs[0], OWN), waiting=jobs[1:], cluster=cluster)
    assert refused(state, Place("b", JOIN)) == "P4"


@pytest.mark.parametrize("pool", ["rollout", "training"])
def test_p5_max_nodes(pool: str) -> None:
    cluster = {**CLUSTER, pool: {**CLUSTER[pool], "max_nodes": 1}}
    state = started((make_job("a"), OWN), waiting=[make_job("b")], cluster=cluster)
    assert refused(state, Place("b", OWN)) == "P5"


def test_p5_counts_the_nodes_that_a_move_holds() -> None:
    cluster = {**CLUSTER, "rollout": {**CLUSTER["rollout"], "max_nodes": 2}}
    pairs = (make_job("a", slo=9), OWN), (make_job("b", slo=9), OWN)
    state = started(*pairs, waiting=[make_job("c", slo=9)], cluster=cluster, now_s=1000)
    assert refused(state, Move("b", JOIN), Place("c", OWN)) == "P5"
    state = started(*pairs, waiting=[make_job("c", slo=9)], cluster=cluster, now_s=1000)
    carry_out(state, (Move("b", JOIN),), True)
    apply(state, Resumed(1300.0, "b"))
    carry_out(state, (Place("c", OWN),), True)
    assert state.group_of("c").id == 2


@pytest.mark.parametrize(("slo_a", "slo_b"), [(1.9, 9), (9, 1.9)])
def test_p6_slo_of_members_and_of_the_job(slo_a: float, slo_b: float) -> None:
    pairs = ((make_job("a", 10, 20, slo=slo_a), OWN),)
    waiting = [make_job("b", 20, 10, slo=slo_b), make_job("c", 10, 30, slo=9)]
    state = started(*pairs, waiting=waiting)
    carry_out(state, (Place("b", JOIN),), True)  # period 30: both run as if alone
    assert refused(state, Place("c", JOIN)) == "P6"  # 20 + 10 + 30 seconds of training
    state = started(*pairs, waiting=waiting)
    carry_out(state, (Place("b", JOIN), Place("c", JOIN)), False)  # policies that keep no SLO may


def test_p7_a_move_needs_slack() -> None:
    """The pause is 300 s; at slo 1.5 and progress at full speed, half the stay is slack: from 600 s on a job may move."""
    pairs = (make_job("a", slo=1.5, iterations=99), OWN), (make_job("b", 1, 1, slo=99, iterations=9999), OWN)
    state = started(*pairs, now_s=600 - 1e-3)
    assert not may_move(state, "a")
    assert refused(state, Move("a", Placement(1, (0,), 0))) == "P7"
    state = started(*pairs, now_s=600)
    assert may_move(state, "a")
    carry_out(state, (Move("a", Placement(1, (0,), 0)),), True)
    assert state.group_of("a").jobs == ("b", "a")


def test_p8_a_job_that_cannot_be_moved_stays() -> None:
    pairs = (make_job("a", slo=9, movable=False), OWN), (make_job("b", slo=9), OWN)
    state = started(*pairs, now_s=1000)
    assert not may_move(state, "a") and may_move(state, "b")
    assert refused(state, Move("a", Placement(1, (0,), 0))) == "P8"
    state = started(*pairs, now_s=1000)
    carry_out(state, (Move("b", JOIN),), True)
    assert state.group_of("a").jobs == ("a", "b")


def test_events_of_a_plan_are_in_its_order_and_waiting_has_none() -> None:
    state = started(
        (make_job("a", slo=9), OWN), (make_job("b", slo=9), OWN), waiting=[make_job("c", slo=9), make_job("d")], now_s=1000
    )
    plan = (Wait("d"), Move("b", JOIN), Place("c", Placement(0, (), 1)))
    assert carry_out(state, plan, True) == [Moved(1000, "b", JOIN), Admitted(1000, "c", Placement(0, (), 1))]
    assert state.waiting == ["d"]


def test_two_jobs_swap_groups_in_one_plan() -> None:
    """Halfway through, group 1 has three members, one too many; afterwards both have two again."""
    cluster = {**CLUSTER, "max_group_size": 2}
    state = started(
        (make_job("a", slo=9), OWN),
        (make_job("b", slo=9), JOIN),
        (make_job("c", slo=9), OWN),
        (make_job("d", slo=9), Placement(1, (0,), 0)),
        cluster=cluster,
        now_s=10_000,
    )
    carry_out(state, (Move("a", Placement(1, (0,), 0)), Move("c", Placement(0, (0,), 0))), True)
    assert [g.jobs for g in state.group_list()] == [("b", "c"), ("d", "a")]
    assert (state.rollout_nodes, state.training_nodes) == (2, 2)
    assert state.is_paused("a")
    assert state.is_paused("c")


def test_a_merge_of_two_groups_empties_one() -> None:
    state = started((make_job("a", slo=9), OWN), (make_job("b", slo=9), OWN), now_s=1000)
    carry_out(state, (Move("b", JOIN),), True)
    assert [g.jobs for g in state.group_list()] == [("a", "b")]
    assert (state.rollout_nodes, state.training_nodes) == (2, 2)  # paid for until the pause ends
    apply(state, Resumed(1300.0, "b"))
    assert (state.rollout_nodes, state.training_nodes) == (1, 1)


def test_a_job_moves_out_into_a_group_of_its_own() -> None:
    state = started((make_job("a", slo=9), OWN), (make_job("b", slo=9), JOIN), now_s=1000)
    carry_out(state, (Move("b", OWN),), True)
    assert [g.jobs for g in state.group_list()] == [("a",), ("b",)]
    assert (state.rollout_nodes, state.training_nodes) == (2, 2)


@pytest.mark.parametrize("plan", [None, [], Wait("a"), ("a",)])
def test_p1_a_plan_is_a_tuple_of_actions(plan: Any) -> None:
    state = started(waiting=[make_job("a")])
    with pytest.raises(PlanError, match=r"^P1: the plan is not a tuple"):
        carry_out(state, plan, True)


def test_p1_nobody_passes_the_first_of_the_queue() -> None:
    state = started(waiting=[make_job("a"), make_job("b")])
    assert refused(state, Place("b", OWN)) == "P1"
    assert refused(state, Wait("a"), Place("b", OWN)) == "P1"
    carry_out(state, (Place("a", OWN), Place("b", OWN)), True)
    assert state.waiting == []
