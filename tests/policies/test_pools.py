"""More pools than two, under every policy: who may join whom, what is bought where, and what nobody uses changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.errors import PlanError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Metrics, metrics
from rollmux_env.scenario import parse_scenario
from tests.oracle.draw import Dict, examples, scenarios
from tests.rollmux_env.cluster.twin import make_job

POLICIES = [
    "rollmux",
    "solo",
    "colocated",
    "random",
    "most-idle",
    "consolidate,budget=300",
    "gavel",
    "regroup",
    "optimal",
    "optimal-work",
]
KEYS = ("cost_usd", "work_h", "slo_attainment", "slowdown", "wait_s", "admissions", "migrations")
NODE = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0}


def measure(policy: str, data: Dict) -> Metrics:
    scenario, contender = parse_scenario(data), make_policy(policy)
    if isinstance(contender, OwnReplay):
        return contender.replay(scenario, check=True).metrics
    return metrics(replay(scenario, contender, check=True))


def on_policy(data: Dict) -> Dict:
    """The jobs without staleness, which `colocated` refuses."""
    return {**data, "jobs": [{**job, "staleness": 0} for job in data["jobs"]]}


@pytest.mark.parametrize("policy", POLICIES)
@examples(6)
@given(data=scenarios(max_jobs=5, shaped=True), first=st.booleans())
def test_a_pool_that_nobody_may_use_changes_nothing(policy: str, data: Dict, first: bool) -> None:
    data = on_policy(data)
    cluster = dict(data["cluster"])
    two = {name: cluster.pop(name) for name in ("rollout", "training")}
    spare = {"spare": {"gpus_per_node": 3, "usd_per_gpu_hour": 0, "max_nodes": 1, "node_memory_gb": 1}}
    pools = {**spare, **two} if first else {**two, **spare}
    expected, found = measure(policy, data), measure(policy, {**data, "cluster": {**cluster, "pools": pools}})
    for key in KEYS:
        assert getattr(found, key) == getattr(expected, key)
    assert found.peak_gpus == {name: expected.peak_gpus.get(name, 0) for name in pools}
    assert found.utilization == {name: expected.utilization.get(name) for name in pools}


@pytest.mark.parametrize("policy", POLICIES)
@examples(6)
@given(data=scenarios(max_jobs=6, shaped=True, pooled=True))
def test_every_policy_keeps_the_invariants_over_three_pools(policy: str, data: Dict) -> None:
    """A checked replay asserts that members are on their group's pools, and nodes, memory and SLOs of each pool."""
    data = on_policy(data)
    try:
        found = measure(policy, data)
    except PlanError as error:  # two sides of one pool can fit on an empty cluster and not when co-located, say
        pytest.fail(str(error))
    assert found.peak_gpus.keys() == found.utilization.keys() == data["cluster"]["pools"].keys()
    assert all(busy is None or 0 <= busy <= 1 + 1e-9 for busy in found.utilization.values())


def jobs_on(*pools: tuple[str, str], **keys: Any) -> list[Dict]:
    jobs = [make_job(f"j{k}", slo=3.0, duration_s=3600, **keys) for k in range(len(pools))]
    for job, (rollout, training) in zip(jobs, pools, strict=True):
        job["rollout"]["pool"], job["training"]["pool"] = rollout, training
    return jobs


def scenario_of(jobs: list[Dict], **pools: Dict) -> Dict:
    return {"version": 1, "cluster": {"pools": pools}, "jobs": jobs}


def test_only_jobs_of_the_same_two_pools_share_a_group() -> None:
    jobs = jobs_on(("a", "b"), ("a", "c"), ("b", "a"), ("a", "b"))
    found = measure("rollmux,prune=false", scenario_of(jobs, a=NODE, b=NODE, c=NODE))
    assert found.admissions == {"direct_packing": 1, "rollout_scaling": 0, "isolated": 3}
    assert found.peak_gpus == {"a": 24, "b": 16, "c": 8}


def test_max_nodes_counts_a_pool_on_both_sides() -> None:
    pools = {"a": {**NODE, "max_nodes": 3}}
    found = measure("solo", scenario_of(jobs_on(("a", "a"), ("a", "a")), **pools))
    assert found.peak_gpus == {"a": 16} and found.wait_s == {"j1": 3600}
    wider = measure("solo", scenario_of(jobs_on(("a", "a"), ("a", "a")), a={**NODE, "max_nodes": 4}))
    assert wider.peak_gpus == {"a": 32} and not wider.wait_s


def test_colocated_buys_nodes_of_the_training_pool() -> None:
    found = measure("colocated", scenario_of(jobs_on(("a", "b"), ("b", "a")), a=NODE, b={**NODE, "usd_per_gpu_hour": 3.0}))
    assert found.peak_gpus == {"a": 8, "b": 8} and found.cost_usd == pytest.approx(8 * 1.0 + 8 * 3.0)


@pytest.mark.parametrize("policy", ["solo", "rollmux", "gavel", "optimal"])
def test_what_shares_no_pool_is_as_if_it_were_alone(policy: str) -> None:
    one, other = jobs_on(("a", "b"), ("a", "b"), ("a", "b")), jobs_on(("c", "d"), ("c", "d"))
    other = [{**job, "id": f"k{k}"} for k, job in enumerate(other)]
    pools = {"a": NODE, "b": {**NODE, "usd_per_gpu_hour": 4.0}, "c": {**NODE, "usd_per_gpu_hour": 2.0}, "d": NODE}
    apart = [measure(policy, scenario_of(jobs, **pools)) for jobs in (one, other)]
    both = measure(policy, scenario_of(one + other, **pools))
    assert both.cost_usd == pytest.approx(sum(each.cost_usd for each in apart))
    assert both.slowdown == pytest.approx({**apart[0].slowdown, **apart[1].slowdown})
