"""The fluid replay and its metrics, against a naive replay, by hand, and under policies that do what they can to break it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import ColocatedJobs, Solo
from policies.placement.regroup import Regroup
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Moved, Placement, Resumed
from rollmux_env.cluster.plan import Move, Policy
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay import fluid
from rollmux_env.replay.checks import check_clock
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle import planner
from tests.oracle.draw import examples, linked, scenarios
from tests.oracle.replay import replay as naive_replay
from tests.rollmux_env.cluster.twin import CLUSTER, make_job
from tests.rollmux_env.replay.restless import Never, Restless, Scripted, cost_of_log

PAIR_USD = 8 * 1.85 + 8 * 5.28  # a rollout node and a training node, $/h


def _phase(pool: str, nodes: int, worst_case_s: float) -> dict[str, Any]:
    return {"pool": pool, "nodes": nodes, "worst_case_s": worst_case_s, "host_memory_gb": 100}


# The sync of `wide` is on the link in a shape alone, where it would take longer than its SLO allows.
ON_ONE_POOL: dict[str, Any] = {
    "version": 1,
    "cluster": {
        "pools": {
            name: {"gpus_per_node": 1, "usd_per_gpu_hour": usd, "node_memory_gb": None, "device_memory_gb": None, "max_nodes": None}
            for name, usd in (("H20", 1.85), ("A100", 2.4), ("H800", 5.28))
        },
        "network": {"link_gbps": 100},
    },
    "jobs": [
        {
            "id": "wide",
            "arrival_s": 59.5,
            "duration_s": 103.0,
            "slo": 1,
            "rollout": _phase("A100", 1, 2.0),
            "training": _phase("A100", 1, 2.0),
            "sync_s": 3,
            "sync_gb": 36,
            "staleness": 1,
            "shapes": [{"rollout": {"pool": "H20"}, "training": {"worst_case_s": 3.0}}],
        },
        {
            "id": "crosses",
            "arrival_s": 0.0,
            "duration_s": 288.0,
            "slo": 1,
            "rollout": _phase("A100", 2, 12.0),
            "training": _phase("H800", 1, 19.0),
            "sync_s": 1,
            "staleness": 1,
        },
    ],
}


def scenario_of(*jobs: dict[str, Any], **cluster: Any) -> Scenario:
    return parse_scenario({"version": 1, "cluster": {**CLUSTER, **cluster}, "jobs": list(jobs)})


def run(policy: Policy, *jobs: dict[str, Any], **cluster: Any) -> Run:
    return replay(scenario_of(*jobs, **cluster), policy, check=True)


def close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key])
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-7, abs=2e-6)
    else:
        assert found == expected


@pytest.mark.parametrize(("policy", "decide"), [(Algorithm1, planner.choose), (Solo, planner.choose_solo)], ids=["rollmux", "solo"])
@examples(120)
@given(scenario=scenarios(shaped=True) | scenarios(shaped=True, pooled=True))
def test_replay_is_the_naive_one(policy: Callable[[], Policy], decide: Callable[..., Any], scenario: dict[str, Any]) -> None:
    found = metrics(replay(parse_scenario(scenario), policy(), check=True)).as_dict()
    expected = naive_replay(scenario, decide)
    close({key: found[key] for key in expected}, expected)


@pytest.mark.parametrize(("policy", "decide"), [(Algorithm1, planner.choose), (Solo, planner.choose_solo)], ids=["rollmux", "solo"])
@examples(40)
@given(scenario=scenarios(shaped=True, pooled=True).flatmap(linked))
@example(scenario=ON_ONE_POOL)
def test_replay_on_a_link_is_the_naive_one(
    policy: Callable[[], Policy], decide: Callable[..., Any], scenario: dict[str, Any]
) -> None:
    """Staleness, shapes, pools and syncs that share a link, all at once."""
    found = metrics(replay(parse_scenario(scenario), policy(), check=True)).as_dict()
    expected = naive_replay(scenario, decide)
    close({key: found[key] for key in expected}, expected)


@examples(60)
@given(scenario=scenarios(fine=True, shaped=True))
def test_replay_of_fine_durations_is_the_naive_one(scenario: dict[str, Any]) -> None:
    found = metrics(replay(parse_scenario(scenario), Algorithm1(), check=True)).as_dict()
    expected = naive_replay(scenario)
    close({key: found[key] for key in expected}, expected)


@pytest.mark.parametrize("keeps_slo", [True, False])
@examples(80)
@given(scenario=scenarios(max_jobs=12, shaped=True) | scenarios(max_jobs=12, shaped=True, pooled=True), seed=st.integers(0, 999))
def test_invariants_hold_under_a_restless_policy(keeps_slo: bool, scenario: dict[str, Any], seed: int) -> None:
    checked = parse_scenario(scenario)
    done = replay(checked, Restless(seed, keeps_slo), check=True)
    found = metrics(done)
    check_clock([event.at_s for event in done.log])
    assert sorted(e.job_id for e in done.log if isinstance(e, Admitted)) == sorted(job.id for job in checked.jobs)
    assert sorted(e.job_id for e in done.log if isinstance(e, Departed)) == sorted(job.id for job in checked.jobs)
    assert found.cost_usd == pytest.approx(cost_of_log(checked, done.log), rel=1e-9, abs=1e-9)
    assert found.migrations == sum(isinstance(e, Moved) for e in done.log) == sum(isinstance(e, Resumed) for e in done.log)
    assert (done.state.rollout_nodes, done.state.training_nodes) == (0, 0)
    assert all(share is None or share <= 1 + 1e-9 for share in found.utilization.values())
    if keeps_slo:
        assert found.slo_attainment == 1  # every group keeps it, and a mover has the slack for its pause


@examples(60)
@given(scenario=scenarios(limited=False))
def test_cost_is_that_of_the_log(scenario: dict[str, Any]) -> None:
    checked = parse_scenario(scenario)
    done = replay(checked, Algorithm1(), check=True)
    assert metrics(done).cost_usd == pytest.approx(cost_of_log(checked, done.log), rel=1e-9, abs=1e-9)


@examples(20)
@given(scenario=scenarios(), seed=st.integers(0, 9))
def test_same_seed_same_bytes(scenario: dict[str, Any], seed: int) -> None:
    checked = parse_scenario(scenario)
    first, second = (replay(checked, Restless(seed, True)) for _ in range(2))
    assert first.log == second.log
    assert json.dumps(metrics(first).as_dict()) == json.dumps(metrics(second).as_dict())


def test_one_job_by_hand() -> None:
    """10 + 5 s, 240 iterations: an hour alone on one rollout and two training nodes."""
    job = make_job("a", 10, 5, iterations=240, training={"nodes": 2}, arrival_s=500)
    found = metrics(run(Solo(), job))
    usd = 8 * 1.85 + 16 * 5.28
    assert found.cost_usd == found.usd_per_hour == found.usd_per_work_hour == pytest.approx(usd)
    assert (found.hours, found.work_h, found.slo_attainment, found.migrations) == (1, 1, 1, 0)
    assert found.slowdown == {"a": 1}
    assert found.wait_s == {}
    assert found.peak_gpus == {"rollout": 8, "training": 16}
    assert found.utilization == {"rollout": pytest.approx(2 / 3), "training": pytest.approx(1 / 3)}


def test_jobs_that_arrive_together_are_taken_in_the_files_order() -> None:
    """Both would fit the first group; whoever is first opens it, and the other packs."""
    for names in ("ab", "ba"):
        done = run(Algorithm1(), *[make_job(name, 5, 5, slo=4) for name in names])
        admitted = [(e.job_id, e.placement.strategy) for e in done.log if isinstance(e, Admitted)]
        assert admitted == [(names[0], "isolated"), (names[1], "direct_packing")]


def test_a_file_need_not_be_in_order_of_arrival() -> None:
    done = run(Solo(), make_job("late", arrival_s=50), make_job("early", arrival_s=20), make_job("first", arrival_s=0))
    assert [e.job.id for e in done.log if isinstance(e, Arrived)] == ["first", "early", "late"]
    assert [e.at_s for e in done.log if isinstance(e, Arrived)] == [0, 20, 50]


@pytest.mark.parametrize(("gap_s", "shared"), [(0, True), (5e-7, True), (2e-6, False)])
def test_times_within_a_microsecond_are_one_instant(gap_s: float, shared: bool) -> None:
    """b arrives just before a leaves; in one instant the departure comes first, so b finds no group to join."""
    jobs = [make_job("a", slo=9, duration_s=100), make_job("b", 1, 1, slo=99, arrival_s=100 - gap_s)]
    done = run(Algorithm1(), *jobs)
    strategies = [e.placement.strategy for e in done.log if isinstance(e, Admitted)]
    assert strategies == ["isolated", "isolated" if shared else "direct_packing"]
    assert max(done.nodes["rollout"]) == 1  # at no instant are both groups there


def test_departures_then_the_queue_then_arrivals() -> None:
    """One node pair; b waits for it, c arrives at the moment when it is free: b has it, c waits."""
    limits = {pool: {**CLUSTER[pool], "max_nodes": 1} for pool in ("rollout", "training")}
    jobs = [make_job(name, 10, 30, duration_s=100, arrival_s=at_s, slo=1) for name, at_s in [("a", 0), ("b", 50), ("c", 100)]]
    found = metrics(run(Algorithm1(), *jobs, **limits))
    assert found.wait_s == {"b": 50, "c": 100}
    assert found.slowdown == {"a": 1, "b": 1, "c": 1}  # waiting is no slowdown
    assert found.hours == pytest.approx(300 / 3600)


def test_the_queue_is_served_until_one_does_not_fit() -> None:
    """The head of the queue needs both nodes: whoever fits in behind it waits too."""
    limits = {pool: {**CLUSTER[pool], "max_nodes": 2} for pool in ("rollout", "training")}
    jobs = [
        make_job("a", 10, 30, duration_s=100, slo=1),
        make_job("wide", 10, 30, duration_s=100, slo=1, rollout={"nodes": 2}, training={"nodes": 2}),
        make_job("small", 10, 30, duration_s=10, slo=1),
    ]
    done = run(Algorithm1(), *jobs, **limits)
    assert [(e.job_id, e.at_s) for e in done.log if isinstance(e, Admitted)] == [("a", 0), ("wide", 100), ("small", 200)]


def test_a_move_by_hand() -> None:
    """a and b alone, 20 s an iteration; c leaves at 1000 s and b joins a, with a pause of 300 s and then 20 s an iteration.

    Four pairs of nodes cost: a 2000 s, b's own till 1300 s, c 1000 s. b does 50 iterations by 1000 s, has a pause, and the
    50 others from 1300 s to 2300 s, the last 300 s of them alone in a's group.
    """
    jobs = [
        make_job("a", 10, 10, iterations=100, slo=4),
        make_job("b", 10, 10, iterations=100, slo=4),
        make_job("c", 10, 10, iterations=50, slo=4),
    ]
    done = run(Scripted("c", Move("b", Placement(0, (0,), 0))), *jobs)
    found = metrics(done)
    assert [(type(e).__name__, e.at_s) for e in done.log if isinstance(e, Moved | Resumed)] == [("Moved", 1000), ("Resumed", 1300)]
    assert found.cost_usd == pytest.approx(PAIR_USD * (2300 + 1300 + 1000) / 3600)
    assert found.slowdown == pytest.approx({"a": 1, "b": 1.15, "c": 1})
    assert found.hours == pytest.approx(2300 / 3600)
    assert found.migrations == 1 and found.work_h == pytest.approx(250 * 20 / 3600)
    assert found.peak_gpus == {"rollout": 24, "training": 24}
    node_s = 2300 + 1300 + 1000
    assert found.utilization == pytest.approx({"rollout": 2500 / node_s, "training": 2500 / node_s})


def test_a_fixed_stay_is_longer_by_the_pause() -> None:
    jobs = [
        make_job("a", iterations=500, slo=4),
        make_job("b", duration_s=3000, slo=4),
        make_job("c", iterations=50, slo=4),
    ]
    done = run(Scripted("c", Move("b", Placement(0, (0,), 0))), *jobs, migration_s=500)
    assert [(e.job_id, e.at_s) for e in done.log if isinstance(e, Departed)] == [("c", 1000), ("b", 3500), ("a", 10_000)]
    found = metrics(done)
    assert found.slowdown["b"] == pytest.approx(3500 / (3000 / 20) / 20)


def test_a_pause_of_nothing_costs_nothing() -> None:
    jobs = [make_job("a", iterations=100, slo=4), make_job("b", iterations=100, slo=4), make_job("c", iterations=50, slo=4)]
    done = run(Scripted("c", Move("b", Placement(0, (0,), 0))), *jobs, migration_s=0)
    assert metrics(done).cost_usd == pytest.approx(PAIR_USD * (2000 + 1000 + 1000) / 3600)
    assert metrics(done).slowdown == pytest.approx({"a": 1, "b": 1, "c": 1})


def test_a_move_without_slack_is_refused() -> None:
    jobs = [make_job("a", slo=1.2, iterations=100), make_job("b", slo=1.2, iterations=100), make_job("c", iterations=50, slo=4)]
    with pytest.raises(PlanError, match=r"^P7: job b"):
        run(Scripted("c", Move("b", Placement(0, (0,), 0))), *jobs)


def test_a_policy_that_never_places_is_told_so() -> None:
    with pytest.raises(PlanError, match="2 jobs wait for ever, the first is a"):
        run(Never(), make_job("a"), make_job("b", arrival_s=5))


def test_nodes_for_nothing() -> None:
    free = {pool: {**CLUSTER[pool], "usd_per_gpu_hour": 0} for pool in ("rollout", "training")}
    found = metrics(run(Algorithm1(), make_job("a", 5, 5), make_job("b", 5, 5), **free))
    assert (found.cost_usd, found.usd_per_hour, found.usd_per_work_hour, found.slo_attainment) == (0, 0, 0, 1)


@pytest.mark.parametrize("scale", [1e-9, 1e-5, 1e5, 1e9])
@pytest.mark.parametrize("policy", [Algorithm1, Solo, ColocatedJobs])
def test_extreme_durations(policy: Callable[[], Policy], scale: float) -> None:
    """Beside one another on one time line, and still: no job lost, slowdowns of 1 to the SLO, costs in proportion."""
    jobs = [
        make_job("a", 10 * scale, 10 * scale, slo=1.5, iterations=10),
        make_job("b", 5 * scale, 5 * scale, slo=3, duration_s=500 * scale),
        make_job("c", 10 * scale, 10 * scale, slo=1, iterations=3, rollout={"nodes": 2}, sync_s=5 * scale),
    ]
    found = metrics(run(policy(), *jobs))
    assert found.slo_attainment == 1
    assert found.cost_usd > 0
    assert found.work_h > 0


@pytest.mark.parametrize("stay", [{"duration_s": 1e-9}, {"iterations": 1}])
def test_a_stay_that_vanishes_beside_its_arrival_is_an_error(stay: dict[str, float] | dict[str, int]) -> None:
    """A nanosecond cannot be added to 1e9 seconds in floating point: there is no slowdown to report."""
    with pytest.raises(InputError, match=r"^job a: its stay is too short to be measured at 1e\+09 s$"):
        metrics(run(Solo(), make_job("a", 1e-9, 1e-9, arrival_s=1e9, **stay)))


def test_colocated_by_hand() -> None:
    """Without a block of its own: training nodes alone, both phases in turn, no sync."""
    jobs = [
        make_job("a", 10, 5, iterations=240, training={"nodes": 2}),
        make_job("b", 10, 5, iterations=120, colocated={"nodes": 3, "rollout_s": 20, "training_s": 10}),
    ]
    found = metrics(run(ColocatedJobs(), *jobs))
    assert found.cost_usd == pytest.approx(5 * 8 * 5.28)
    assert found.slowdown == pytest.approx({"a": 1, "b": 2})
    assert found.utilization == {"rollout": None, "training": pytest.approx(1)}
    assert found.peak_gpus == {"rollout": 0, "training": 40}


def test_a_policy_is_woken_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluid, "MAX_INSTANTS", 20)
    problem = scenario_of(make_job("a", duration_s=1e9))
    with pytest.raises(InputError, match="fluid replay: the policy has been woken 20 times after "):
        replay(problem, Regroup())
