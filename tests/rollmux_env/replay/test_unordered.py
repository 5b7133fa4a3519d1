"""Sharing without an order of phases: what a user of `naive` relies on."""

from __future__ import annotations

import pytest

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Metrics, metrics
from rollmux_env.replay.unordered import replay_unordered
from rollmux_env.scenario import Scenario, parse_scenario

POOL = {"gpus_per_node": 8, "usd_per_gpu_hour": 1}
JOB = {"arrival_s": 0, "iterations": 20, "slo": 3, "rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 10}}


FIXED = {key: value for key, value in JOB.items() if key != "iterations"}
PLAIN = {"version": 1, "cluster": {"rollout": POOL, "training": POOL}}


def scenario(*jobs: dict[str, object], **cluster: object) -> Scenario:
    listed = [JOB | {"id": "ab"[k]} | job for k, job in enumerate(jobs)]
    return parse_scenario({"version": 1, "cluster": {"rollout": POOL, "training": POOL} | cluster, "jobs": listed})


def shared(problem: Scenario) -> Metrics:
    return metrics(replay_unordered(problem, Algorithm1(prune=False), check=True))


def test_alone_a_job_takes_what_it_takes() -> None:
    found = shared(scenario({"sync_s": 5}))
    assert found.slowdown == {"a": pytest.approx(1)}
    assert found.utilization == {"rollout": pytest.approx(0.4), "training": pytest.approx(0.4)}


def test_a_stay_ends_with_an_iteration() -> None:
    found = shared(parse_scenario({**PLAIN, "jobs": [{**FIXED, "id": "a", "duration_s": 85}]}))
    assert found.hours == pytest.approx(100 / 3600) and found.slowdown == {"a": pytest.approx(1)}


@pytest.mark.parametrize(("later_s", "iteration_s"), [(0, 40), (5, 30), (10, 20)])
def test_equal_jobs_keep_the_lag_that_they_came_with(later_s: float, iteration_s: float) -> None:
    """At once they collide in every phase, and each takes twice as long; half an iteration apart they never meet."""
    found = shared(scenario({}, {"arrival_s": later_s}))
    assert found.slowdown == {"a": pytest.approx(iteration_s / 20), "b": pytest.approx(iteration_s / 20)}
    assert found.admissions["direct_packing"] == 1


def test_a_phase_is_as_slow_as_on_its_most_crowded_node() -> None:
    wide: dict[str, object] = {"rollout": {"worst_case_s": 10, "nodes": 2}, "training": {"worst_case_s": 1}}
    problem = scenario(wide, {"training": {"worst_case_s": 1}})
    log = replay_unordered(problem, Algorithm1(), check=True)
    assert log.nodes["rollout"][0] == 2, "the second job shares one of the two nodes"
    assert metrics(log).slowdown == {"a": pytest.approx(2), "b": pytest.approx(2)}


def test_on_one_device_a_rollout_meets_a_training() -> None:
    found = shared(scenario({}, {"arrival_s": 10}, one_device=True))
    assert found.slowdown["a"] == pytest.approx(2, rel=0.05)


def test_where_nobody_shares_it_is_the_fluid_replay() -> None:
    problem = scenario({}, {"arrival_s": 7, "iterations": 3})
    alone = metrics(replay_unordered(problem, Solo(), check=True))
    assert alone.cost_usd == pytest.approx(metrics(replay(problem, Solo())).cost_usd)
