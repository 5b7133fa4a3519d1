"""Lanes: which nodes a group has and when, as a reader of the log would count them."""

from __future__ import annotations

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement, Resumed
from rollmux_env.cluster.plan import Policy
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.run import PhaseRun
from rollmux_env.report.lanes import Membership, NodeUse, follow, node_steps, shares
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from tests.rollmux_env.replay.restless import Restless

CLUSTER = Cluster(
    rollout=Pool(gpus_per_node=8, usd_per_gpu_hour=1.0), training=Pool(gpus_per_node=8, usd_per_gpu_hour=5.0), migration_s=30
)


def job(job_id: str) -> Job:
    return Job(id=job_id, arrival_s=0, iterations=9, slo=2, rollout=Phase(worst_case_s=10), training=Training(worst_case_s=5))


def phase(job_id: str, start_s: float, end_s: float, nodes: tuple[int, ...] = (0,), switch_s: float = 0.0) -> PhaseRun:
    return PhaseRun(job_id, "rollout", 0, 0, "rollout", nodes, start_s, end_s, switch_s)


def test_a_group_grows_and_shrinks_with_its_members() -> None:
    log: list[Event] = [
        Arrived(0, job("a")),
        Admitted(0, "a", Placement(None, (), 1, 1)),
        Arrived(5, job("b")),
        Admitted(5, "b", Placement(0, (), 1)),
        Departed(40, "a"),
        Departed(90, "b"),
    ]
    lanes, members = follow(CLUSTER, log)
    assert lanes == [NodeUse(0, "rollout", 0, 0, 40), NodeUse(0, "rollout", 1, 5, 90), NodeUse(0, "training", 0, 0, 90)]
    assert members == [
        Membership(0, 0, ("a",), 15),
        Membership(0, 5, ("a", "b"), 15),
        Membership(0, 40, ("b",), 15),
        Membership(0, 90, (), 0),
    ]


def test_nodes_that_a_move_leaves_are_there_until_its_pause_ends() -> None:
    log: list[Event] = [
        Arrived(0, job("a")),
        Admitted(0, "a", Placement(None, (), 1, 1)),
        Arrived(0, job("b")),
        Admitted(0, "b", Placement(None, (), 1, 1)),
        Moved(20, "b", Placement(0, (0,))),
        Resumed(50, "b"),
    ]
    lanes, members = follow(CLUSTER, log)
    assert [lane for lane in lanes if lane.group == 1] == [NodeUse(1, "rollout", 0, 0, 50), NodeUse(1, "training", 0, 0, 50)]
    assert [(seen.group, seen.at_s, seen.jobs) for seen in members[-2:]] == [(1, 20, ()), (0, 20, ("a", "b"))]
    two, none = {"rollout": 2, "training": 2}, {"rollout": 0, "training": 0}
    assert node_steps(lanes) == [(0, two), (50, none)]
    assert node_steps(follow(CLUSTER, log[:-1])[0]) == [(0, two), (20, none)], "a log that ends before the pause does"


@pytest.mark.parametrize("policy", [make_runnable("rollmux"), make_runnable("colocated"), Restless(0, keeps_slo=False)])
def test_lanes_add_up_to_what_the_replay_paid_for(policy: Policy) -> None:
    scenario = make_workload("production", WorkloadOptions(seed=3, jobs=25))
    run = replay_events(scenario, policy, make_dispatch("round-robin"), 0, Watch(keep_phases=True))
    assert isinstance(policy, Restless) == any(isinstance(event, Moved) for event in run.log)
    lanes, _ = follow(scenario.cluster, run.log)
    paid = {at_s: {name: counts[k] for name, counts in run.nodes.items()} for k, at_s in enumerate(run.time_s)}
    known = {"rollout": 0, "training": 0}
    steps = dict(node_steps(lanes))
    assert set(steps) <= set(paid)
    for at_s in paid:
        known = steps.get(at_s, known)
        assert known == paid[at_s]
    on = {(lane.group, lane.pool, lane.node): lane for lane in lanes}
    for done in run.phases:
        for node in done.nodes:
            lane = on[done.group, done.pool, node]
            assert lane.from_s <= done.start_s <= done.end_s <= lane.until_s


def test_shares_are_node_seconds_by_hand() -> None:
    lanes = [NodeUse(0, "rollout", 0, 0, 100), NodeUse(0, "rollout", 1, 50, 200)]
    phases = [phase("a", 10, 40, switch_s=5), phase("b", 60, 90, (0, 1)), phase("c", 95, 120, (1, 7))]
    found = shares(phases, lanes, 0, 100)  # 150 node-seconds
    assert found is not None
    assert (found.running, found.switching) == pytest.approx(((25 + 60 + 5) / 150, 5 / 150))
    assert found.bubble == pytest.approx(1 - 95 / 150)
    assert shares(phases, lanes, 200, 300) is None


def test_shares_of_a_window_inside_a_switch() -> None:
    found = shares([phase("a", 0, 100, switch_s=50)], [NodeUse(0, "rollout", 0, 0, 100)], 40, 60)
    assert found == pytest.approx((0.5, 0.5, 0.0))
