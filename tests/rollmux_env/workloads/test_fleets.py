"""Fleets: numbers of nodes, or as many as a load needs."""

from __future__ import annotations

import pytest

from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.fleets import fleet_words, nodes_at_load, with_fleet


def stream(*jobs: dict[str, object]) -> Scenario:
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0}
    own = {"slo": 2, "rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
    return parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": [{**own, **job} for job in jobs]})


def test_a_load_is_what_jobs_alone_would_hold_over_the_time_of_their_arrivals() -> None:
    wide = {"nodes": 3, "worst_case_s": 60}
    jobs = stream(
        {"id": "a", "arrival_s": 0, "iterations": 360},  # 10 h
        {"id": "b", "arrival_s": 18000, "duration_s": 36000},  # 10 h
        {"id": "c", "arrival_s": 36000, "iterations": 180, "rollout": wide},  # 5 h on three rollout nodes
    )
    assert nodes_at_load(jobs, 1.0) == {"rollout": 4, "training": 2}  # 35 h and 25 h over 10 h, to the nearest
    assert nodes_at_load(jobs, 1.5) == {"rollout": 3, "training": 2}  # the widest job asks for three
    assert nodes_at_load(jobs, 50.0) == {"rollout": 3, "training": 1}


def test_a_fleet_limits_every_pool_and_changes_nothing_else() -> None:
    free = make_workload("mixed", WorkloadOptions(jobs=5))
    owned = with_fleet(free, "12+10")
    assert [pool.max_nodes for pool in owned.cluster.pools.values()] == [12, 10]
    assert owned.jobs == free.jobs
    assert with_fleet(owned, "3+2") == with_fleet(free, "3+2")
    three = with_fleet(load_scenario(find_file("three_pools")), "8+8+4")
    assert fleet_words([three]) == "8 + 8 + 4"
    assert fleet_words([owned, with_fleet(free, "14+10")]) == "12 to 14 + 10"


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        ("12", "--fleet 12: must be a number of nodes for each pool of the cluster: rollout + training"),
        ("12+x", "--fleet 12+x: is neither numbers of nodes, as in 12+10, nor load=NUMBER"),
        ("load=much", "--fleet load=much: is neither numbers of nodes, as in 12+10, nor load=NUMBER"),
        ("load=0", "--fleet load=0: the load must be above 0"),
        ("load=1", "--fleet load=1: all jobs arrive at once, so there is no load; give numbers of nodes"),
        ("0+3", "--fleet 0+3: cluster.rollout.max_nodes: must be at least 1, not 0"),
        ("1+3", "--fleet 1+3: jobs[0].rollout.nodes: asks for 2 nodes; the rollout pool has at most 1"),
    ],
)
def test_a_fleet_that_is_none(fleet: str, problem: str) -> None:
    jobs = stream({"id": "a", "arrival_s": 0, "iterations": 1, "rollout": {"nodes": 2, "worst_case_s": 60}})
    with pytest.raises(InputError) as error:
        with_fleet(jobs, fleet)
    assert str(error.value) == problem
