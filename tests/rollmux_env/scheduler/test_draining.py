"""Draining nodes, taking them back, and adding some: where jobs go, what the policy may use, and in what order jobs wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.registry import make_runnable
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Departed, Moved, Placement, Requeued, Resized
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Training
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.nodes import Assigned, NodePool, Returned
from rollmux_env.scheduler.relocation import without
from tests.rollmux_env.scheduler.driver import Driver, make_job, make_nodes
from tests.rollmux_env.scheduler.test_core import Scripted


def driven(pairs: int, policy: Policy | None = None) -> Driver:
    return Driver(policy or Algorithm1(), make_dispatch("round-robin"), pairs, lambda: policy or Algorithm1())


def alone(name: str, iterations: int = 3, movable: bool = True) -> Job:
    """A job that shares nodes with nobody: two trainings on a node would take longer than its SLO allows."""
    training = Training(worst_case_s=3.0)
    return make_job(name, iterations, slo=1.0).model_copy(update={"training": training, "movable": movable})


def drain(driver: Driver, *names: str) -> None:
    driver.tell(facts.Drained(frozenset(names)))


def sizes(driver: Driver) -> list[tuple[int, int]]:
    return [(entry.rollout_nodes, entry.training_nodes) for entry in driver.entries if isinstance(entry, Resized)]


def nodes_of(driver: Driver, name: str) -> set[str]:
    return driver.scheduler.members.seats[name].nodes()


def iterate(driver: Driver, name: str) -> None:
    for _ in range(3):
        driver.tell(*driver.goes_on(name))


def test_a_free_node_is_out_of_the_limits_at_once_and_back_when_it_is_taken_back() -> None:
    driver = driven(2)
    driver.submit(alone("a"))
    drain(driver, "rollout-1")
    assert sizes(driver) == [(1, 2)]
    driver.submit(alone("b"))
    assert driver.scheduler.state.waiting == ["b"] and not driver.scheduler.stuck
    driver.tell(facts.Undrained(frozenset({"rollout-1"})))
    assert sizes(driver) == [(1, 2), (2, 2)] and nodes_of(driver, "b") == {"rollout-1", "training-1"}


def test_a_job_moves_at_the_end_of_its_iteration_and_then_the_node_is_out() -> None:
    driver = driven(2)
    driver.submit(alone("a"))
    driver.tell(*driver.goes_on("a"))
    drain(driver, "training-0")
    assert driver.given(commands.Vacate) == [commands.Vacate("a")] and sizes(driver) == []
    for _ in range(2):
        driver.tell(*driver.goes_on("a"))
    assert nodes_of(driver, "a") == {"rollout-1", "training-1"}
    assert [entry.node for entry in driver.entries if isinstance(entry, Returned)] == ["rollout-0", "training-0"]
    assert sizes(driver) == [(2, 1)]
    driver.submit(alone("b"))
    assert driver.scheduler.state.waiting == ["b"]
    driver.settle()
    assert driver.departed() == ["a", "b"]  # which had its place when a had gone
    assert not driver.scheduler.state.waiting


def test_all_members_of_a_group_move_on_the_nodes_that_the_policy_would_give_them_now() -> None:
    driver = driven(2)
    for name in "ab":
        driver.submit(make_job(name))
    assert len(driver.scheduler.state.group_list()) == 1
    drain(driver, "rollout-0")
    assert [entry.placement.group for entry in driver.entries if isinstance(entry, Moved)] == [None, 1]
    driver.settle()
    assert sorted(driver.departed()) == ["a", "b"] and sizes(driver)[-1] == (1, 2)


def test_where_there_is_no_room_jobs_wait_at_the_head_of_the_queue_once_their_iteration_is_over() -> None:
    driver = driven(1)
    driver.submit(alone("a"))
    driver.submit(alone("b"))
    iterate(driver, "a")
    drain(driver, "rollout-0")
    assert driver.scheduler.must_vacate("a") and not driver.given(commands.Vacate)
    iterate(driver, "a")
    assert driver.given(commands.Evict) == [commands.Evict("a")]
    driver.tell(*driver.goes_on("a"))
    assert driver.scheduler.state.waiting == ["a", "b"] and not driver.scheduler.stuck
    (again,) = [entry for entry in driver.entries if isinstance(entry, Requeued)]
    assert again.job.iterations == 1 and sizes(driver) == [(0, 1)]
    driver.tell(facts.Undrained(frozenset({"rollout-0"})))
    assert driver.scheduler.state.waiting == ["b"]
    driver.settle()
    assert driver.departed() == ["a", "a", "b"]


def test_a_node_that_is_taken_back_in_time_keeps_its_jobs() -> None:
    driver = driven(1)
    driver.submit(alone("a"))
    drain(driver, "rollout-0")
    driver.tell(facts.Undrained(frozenset({"rollout-0"})))
    assert not driver.scheduler.must_vacate("a")
    driver.settle()
    assert driver.departed() == ["a"] and not driver.given(commands.Evict) and sizes(driver) == []


@pytest.mark.parametrize("policy", ["rollmux", "consolidate", "regroup", "learned:default"])
def test_nobody_joins_a_job_that_cannot_move_and_others_go_elsewhere(policy: str) -> None:
    driver = Driver(make_runnable(policy), make_dispatch("round-robin"), 2, lambda: make_runnable(policy))
    driver.submit(make_job("stays").model_copy(update={"movable": False}))
    drain(driver, "training-0")
    assert not driver.scheduler.must_vacate("stays") and sizes(driver) == []
    for name in "ab":
        driver.submit(make_job(name))
        assert nodes_of(driver, name) == {"rollout-1", "training-1"}
    for _ in range(12):
        driver.tell(*driver.goes_on("stays"))
    assert driver.departed() == ["stays"] and sizes(driver) == [(2, 1)]
    assert not [entry for entry in driver.entries if isinstance(entry, Moved)]


def test_a_job_that_may_only_be_parked_leaves_for_the_queue_and_goes_on_elsewhere() -> None:
    driver = driven(2)
    driver.submit(alone("a", movable=False).model_copy(update={"parkable": True}))
    drain(driver, "rollout-0")
    assert driver.scheduler.must_vacate("a") and not driver.given(commands.Vacate)
    iterate(driver, "a")
    assert driver.given(commands.Evict) == [commands.Evict("a")]
    driver.tell(*driver.goes_on("a"))
    assert nodes_of(driver, "a") == {"rollout-1", "training-0"}


def test_members_that_do_not_use_the_node_stay() -> None:
    """Both train on the same node, and roll out on nodes of their own."""
    places = {"b": Placement(0, (), 1)}
    driver = driven(3, Scripted(places))
    for name in "ab":
        driver.submit(make_job(name))
    drain(driver, "rollout-0")
    driver.settle()
    moved = [entry.job_id for entry in driver.entries if isinstance(entry, Moved)]
    assert "b" not in moved and sorted(driver.departed()) == ["a", "b"]


def test_a_node_that_joins_is_used_by_who_waits() -> None:
    driver = driven(1)
    for name in "ab":
        driver.submit(alone(name))
    driver.join("rollout")
    assert driver.scheduler.state.waiting == ["b"] and sizes(driver) == [(2, 1)]
    driver.join("training")
    assert not driver.scheduler.state.waiting and nodes_of(driver, "b") == {"rollout-102", "training-103"}


def test_a_drain_is_known_after_a_restart() -> None:
    driver = driven(2)
    driver.submit(alone("a", movable=False))
    drain(driver, "rollout-0", "rollout-1")
    pool = NodePool(make_nodes(2))
    pool.restore(entry for entry in driver.entries if isinstance(entry, Assigned | Returned))
    pool.drained |= {"rollout-0", "rollout-1"}
    state = driver.twin.copy()
    scheduler = Scheduler(state, Algorithm1(), make_dispatch("round-robin"), pool, Algorithm1)
    assert scheduler.restore(driver.now_s, driver.cluster, set(), {}) == []
    assert state.cluster.pools["rollout"].max_nodes == 1 and scheduler.members.seats["a"].nodes() == {"rollout-0", "training-0"}
    step = scheduler.step(driver.now_s, [facts.Queued(alone("b"))])
    assert state.waiting == ["b"] and not [entry for entry in step.entries if isinstance(entry, Admitted)]


def test_a_job_is_moved_from_a_drained_node_after_a_restart() -> None:
    driver = driven(2)
    driver.submit(alone("a"))
    pool = NodePool(make_nodes(2))
    pool.restore(entry for entry in driver.entries if isinstance(entry, Assigned | Returned))
    pool.drained |= {"rollout-0"}
    scheduler = Scheduler(driver.twin.copy(), Algorithm1(), make_dispatch("round-robin"), pool, Algorithm1)
    scheduler.restore(driver.now_s, driver.cluster, set(), {})
    given = scheduler.step(driver.now_s).commands
    assert [type(command) for command in given] == [commands.StartJob, commands.Vacate]


def test_what_the_policy_sees_is_the_cluster_without_the_groups_of_drained_nodes() -> None:
    driver = driven(3)
    for name in "abc":
        driver.submit(alone(name))
    state = driver.scheduler.state
    twin = without(state, {0, 2})
    assert [group.jobs for group in twin.group_list()] == [("b",)] and (twin.rollout_nodes, twin.training_nodes) == (1, 1)
    assert twin.limits.pools["nodes_max"].tolist() == [1, 1]
    assert len(state.group_list()) == 3 and state.limits.pools["nodes_max"][0] == 3
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)  # without a limit
    unlimited = State(state.cluster.model_copy(update={"rollout": pool, "training": pool}))
    assert without(unlimited, {0}).limits.pools["nodes_max"][0] >= 2**31


def test_hidden_jobs_teach_nothing_about_the_length_of_jobs() -> None:
    driver = driven(3)
    for name in "abc":
        driver.submit(alone(name))
    state = driver.scheduler.state.copy()
    apply(state, Departed(state.now_s, "b"))
    twin = without(state, {0, 2})
    assert [*twin.stays.lengths_h] == ["b"] and twin.stays.lengths_h == state.stays.lengths_h
    assert twin.stays.lengths_of_class_h == state.stays.lengths_of_class_h


def test_a_job_is_requeued_before_its_like_and_behind_those_of_a_higher_priority() -> None:
    driver = driven(1)
    driver.submit(alone("a"))
    driver.submit(alone("first").model_copy(update={"priority": 1}))
    driver.submit(alone("c"))
    drain(driver, "rollout-0")
    iterate(driver, "a")
    driver.tell(*driver.goes_on("a"))
    assert driver.scheduler.state.waiting == ["first", "a", "c"]


def test_nodes_are_counted_once_they_are_in_nobodys_place() -> None:
    pool = NodePool(make_nodes(2))
    pool.settle([(0, "rollout", 0)], (), 1.0)
    pool.drained |= {"rollout-0", "rollout-1", "elsewhere"}
    assert pool.in_service("rollout") == 1 and pool.drained_groups() == {0} and pool.free("rollout") == []
    assert pool.take_back([], {"rollout-0"}, 2.0) == []  # somebody uses it
    assert pool.take_back([], (), 2.0) == [Returned(2.0, "rollout-0")] and pool.in_service("rollout") == 0
    pool.add([replace(make_nodes(1)[0], name="rollout-9")])
    assert [node.name for node in pool.free("rollout")] == ["rollout-9"]
