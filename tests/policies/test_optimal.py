"""`optimal` and `optimal-work`: exact, never above what a policy pays, the same every time, and honest where a limit bites."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import policies.placement.optimal.partition as partition_module
import policies.placement.optimal.program as program_module
from policies.experiments import bench
from policies.placement.optimal import Optimal, OptimalPlan
from policies.registry import make_runnable
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.oracle import draw
from tests.oracle.draw import Dict
from tests.oracle.optimum import Optimum
from tests.oracle.period import period
from tests.oracle.planner import MEMORY, at_most, in_shape, node_usd_per_hour, read, solo_s, training_s

Objective = Literal["usd", "work"]


def assert_best(data: Dict) -> None:
    """Both objectives against the brute force, `max_nodes` included, and every group against the contract's definitions."""
    scenario = parse_scenario(data)
    cluster, jobs = read(data)
    jobs.sort(key=lambda job: job["arrival_s"])
    brute = Optimum(cluster, jobs)
    count = len(jobs)
    while brute.least(count, False) == np.inf:
        count -= 1
    for objective in ("usd", "work"):
        plan = Optimal(objective).plan(scenario)
        assert plan.queued == tuple(job["id"] for job in jobs[count:])
        assert plan.value == pytest.approx(brute.least(count, objective == "work"), rel=1e-9, abs=1e-9)
        assert plan.gap == 0
        assert_valid(plan, cluster, jobs[:count])


def assert_valid(plan: OptimalPlan, cluster: Dict, jobs: list[Dict]) -> None:
    named = {job["id"]: job for job in jobs}
    assert sorted(job for group in plan.groups for job in group.jobs) == sorted(named)
    pools, used = cluster["pools"], dict.fromkeys(cluster["pools"], 0)
    for group in plan.groups:
        members = [in_shape(named[job], shape) for job, shape in zip(group.jobs, group.shapes, strict=True)]
        ((rollout_pool, training_pool),) = {(job["rollout"]["pool"], job["training"]["pool"]) for job in members}
        used[rollout_pool] += len({v for at in group.rollout_nodes for v in at})
        used[training_pool] += group.training_nodes
        assert len(members) <= cluster["max_group_size"]
        assert all(len(at) == job["rollout"]["nodes"] for at, job in zip(group.rollout_nodes, members, strict=True))
        assert all(job["training"]["nodes"] <= group.training_nodes for job in members)
        played = period(
            [
                (job["rollout"]["worst_case_s"], training_s(job, group.training_nodes), job["sync_s"], at, job["staleness"])
                for job, at in zip(members, group.rollout_nodes, strict=True)
            ]
        )
        assert group.period_s == pytest.approx(float(played), rel=1e-9)
        assert all(at_most(group.period_s, job["slo"] * solo_s(job)) for job in members)
        for v in {v for at in group.rollout_nodes for v in at}:
            pinned = [job for job, at in zip(members, group.rollout_nodes, strict=True) if v in at]
            for key, name in MEMORY.items():
                limit_gb = pools[rollout_pool][name]
                assert limit_gb is None or at_most(sum(job["rollout"][key] for job in pinned), limit_gb)
    assert plan.usd_per_hour == pytest.approx(sum(nodes * node_usd_per_hour(cluster, name) for name, nodes in used.items()))
    assert all(pools[name]["max_nodes"] is None or nodes <= pools[name]["max_nodes"] for name, nodes in used.items())


@given(draw.scenarios(max_jobs=5, shaped=True) | draw.scenarios(max_jobs=5, shaped=True, pooled=True))
@draw.examples(80)
def test_both_objectives_are_those_of_the_best_partition_pinning_and_order(data: Dict) -> None:
    data["cluster"]["max_group_size"] = min(4, data["cluster"]["max_group_size"])
    assert_best(data)


@given(data=draw.scenarios(max_jobs=5, shaped=True), which=st.integers(0, 4), seconds=st.integers(1, 20))
@draw.examples(30)
def test_another_shape_in_the_list_never_makes_the_optimum_dearer(data: Dict, which: int, seconds: int) -> None:
    for pool in ("rollout", "training"):
        data["cluster"][pool].pop("max_nodes", None)  # else it may change who waits
    job = data["jobs"][which % len(data["jobs"])]
    more = {**job, "shapes": [*job.get("shapes", []), {"rollout": {"nodes": 3, "worst_case_s": seconds + 0.5}}]}
    jobs = [more if other is job else other for other in data["jobs"]]
    for objective in ("usd", "work"):
        before, after = (Optimal(objective).plan(parse_scenario(found)).value for found in (data, {**data, "jobs": jobs}))
        assert after <= before * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_seven_jobs_of_one_node_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        {
            "id": f"j{k}",
            "arrival_s": 0,
            "iterations": 1,
            "slo": float(rng.choice([1.2, 1.5, 2, 3])),
            "rollout": {"worst_case_s": int(rng.integers(1, 12)), "host_memory_gb": int(rng.integers(0, 4)) * 100},
            "training": {"worst_case_s": int(rng.integers(1, 6)), "by_nodes": {2: 1} if rng.random() < 0.3 else {}},
        }
        for k in range(7)
    ]
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.85, "node_memory_gb": 800}
    assert_best({"version": 1, "cluster": {"rollout": pool, "training": {**pool, "usd_per_gpu_hour": 5.28}}, "jobs": jobs})


@pytest.mark.parametrize("seed", range(4))
def test_seven_jobs_with_sync_and_several_nodes(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    jobs = [
        {
            "id": f"j{k}",
            "arrival_s": 0,
            "iterations": 1,
            "slo": float(rng.choice([1.5, 2, 2.5])),
            "rollout": {"worst_case_s": int(rng.integers(1, 20)), "nodes": int(rng.integers(1, 3))},
            "training": {"worst_case_s": int(rng.integers(1, 12)), "nodes": 1 + int(rng.random() < 0.2)},
            "sync_s": int(rng.choice([0, 0, 5])),
            "staleness": int(rng.choice([0, 0, 0, 2])),
        }
        for k in range(7)
    ]
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.85}
    cluster = {"rollout": pool, "training": {**pool, "usd_per_gpu_hour": 5.28}, "max_group_size": 3}
    assert_best({"version": 1, "cluster": cluster, "jobs": jobs})


@given(draw.scenarios(max_jobs=4, limited=False))
@draw.examples(30)
def test_a_part_of_a_feasible_group_is_feasible_on_no_more_nodes_and_at_no_longer_a_period(data: Dict) -> None:
    cluster, jobs = read(data)
    cluster["max_group_size"] = 4
    brute = Optimum(cluster, jobs)
    for group, all_ways in brute.ways.items():
        for k in group:
            part = tuple(j for j in group if j != k)
            for r, t, period_s, *_ in all_ways if part else []:
                assert any(a <= r and b <= t and p <= period_s * (1 + 1e-12) for a, b, p, *_ in brute.ways[part])


def stream(seed: int, stays: Literal["iterations", "fixed"] = "fixed", jobs: int = 60, name: str = "mixed") -> Scenario:
    return make_workload(name, WorkloadOptions(seed=seed, jobs=jobs, stays=stays))


@pytest.mark.parametrize("name", ["mixed", "rollout-heavy", "production"])
def test_no_policy_pays_less_than_the_bound_where_stays_are_fixed(name: str) -> None:
    scenario = stream(0, name=name)
    found = Optimal().replay(scenario, check=True)
    bound_usd, gap = found.extra["bound_usd"], found.extra["gap"]
    assert bound_usd is not None and gap is not None and gap < 1e-9
    assert found.metrics.slo_attainment == 1
    for policy in ("rollmux", "rollmux,prune=false", "solo"):
        paid = metrics(replay(scenario, make_runnable(policy))).cost_usd
        assert bound_usd <= found.metrics.cost_usd * (1 + 1e-9) <= paid * (1 + 2e-9)


def test_there_is_no_bound_where_policies_may_pay_less() -> None:
    fixed, waits, equal_work = stream(0, jobs=12), small_pools(), stream(0, "iterations", 12)
    cases: list[tuple[str, Scenario]] = [
        ("optimal", equal_work),
        ("optimal", waits),
        ("optimal,switches=true", fixed),
        ("optimal-work", fixed),
        ("optimal-work", equal_work),
    ]
    for name, scenario in cases:
        (run,) = bench(scenario, [name]).runs
        assert (run.extra["bound_usd"], run.extra["gap"]) == (None, None), name
        assert 0 <= run.extra["grouping_gap"] < 1e-9, name  # type: ignore[operator]


@given(draw.scenarios(max_jobs=6, limited=False))
@draw.examples(30)
def test_no_policy_pays_less_on_any_stream_of_fixed_stays(data: Dict) -> None:
    for k, job in enumerate(data["jobs"]):
        job.pop("iterations", None)
        job["duration_s"] = 50 + 10 * k
    scenario = parse_scenario(data)
    found = Optimal().replay(scenario, check=True).metrics
    for policy in ("rollmux", "solo"):
        assert found.cost_usd <= metrics(replay(scenario, make_runnable(policy))).cost_usd * (1 + 1e-9) + 1e-9


def test_optimal_work_has_the_least_dollars_per_work_hour_of_every_active_set() -> None:
    scenario = make_workload("production", WorkloadOptions(seed=1, jobs=12))
    by_usd, by_work = Optimal("usd").plan(scenario), Optimal("work").plan(scenario)
    rate = {job.id: job.solo_s for job in scenario.jobs}
    ratio = by_usd.usd_per_hour / sum(rate[job] / group.period_s for group in by_usd.groups for job in group.jobs)
    assert by_work.value <= ratio * (1 + 1e-12)
    assert by_usd.value <= by_work.usd_per_hour * (1 + 1e-12)


@pytest.mark.parametrize("objective", ["usd", "work"])
def test_a_pool_kept_over_a_replay_gives_what_a_fresh_one_gives(objective: str) -> None:
    scenario = stream(5, jobs=25, name="production")
    found = Optimal(objective).replay(scenario)  # type: ignore[arg-type]
    usd, jobs = 0.0, in_order_of_arrival(scenario)
    for start, end in zip(found.time_s, found.time_s[1:], strict=False):
        present = tuple(job for job in jobs if job.arrival_s <= start < job.arrival_s + (job.duration_s or 0) - 1e-3)
        if present:
            fresh = Optimal(objective).plan(scenario.model_copy(update={"jobs": present}))  # type: ignore[arg-type]
            rate = fresh.value
            if objective == "work":
                solo = {job.id: job.solo_s for job in present}
                rate *= sum(solo[job] / group.period_s for group in fresh.groups for job in group.jobs)
            usd += rate * (end - start) / 3600
    assert found.metrics.cost_usd == pytest.approx(usd, rel=1e-9 if objective == "usd" else 0.02)


def test_jobs_leave_after_their_iterations_or_their_stay() -> None:
    scenario = stream(2, "iterations", 30)
    found = Optimal().replay(scenario, check=True).metrics
    assert found.work_h == pytest.approx(sum((job.iterations or 0) * job.solo_s for job in scenario.jobs) / 3600)
    assert sum(found.admissions.values()) == 30
    assert found.migrations == 0
    assert all(0 < (share or 0) <= 1 for share in found.utilization.values())


def test_a_lone_job_is_isolated_and_costs_what_solo_pays() -> None:
    scenario = stream(0, jobs=1)
    found, solo = Optimal().replay(scenario).metrics, metrics(replay(scenario, make_runnable("solo")))
    assert found.admissions == {"direct_packing": 0, "rollout_scaling": 0, "isolated": 1}
    assert found.cost_usd == pytest.approx(solo.cost_usd)
    assert found.utilization == pytest.approx(solo.utilization)
    assert found.slowdown == pytest.approx(solo.slowdown)


def small_pools() -> Scenario:
    """Four jobs of which two wait, since each pool has one node."""
    pool = {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0, "max_nodes": 1}
    phases = {"rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 10}}
    job = {"arrival_s": 0, "duration_s": 100, **phases}
    jobs = [
        {**job, "id": "a", "slo": 1.5},
        {**job, "id": "b", "slo": 1.5},
        {**job, "id": "c", "slo": 1},
        {**job, "id": "d", "slo": 9},
    ]
    jobs[2] = {**jobs[2], "rollout": {"worst_case_s": 15}}  # its period is 25, and the others' at most 30: alone or in pairs
    jobs[3] = {**jobs[3], "rollout": {"worst_case_s": 1}, "training": {"worst_case_s": 11}}
    return parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": jobs})


def test_what_max_nodes_keeps_out_waits_first_come_first_served() -> None:
    plan = Optimal().plan(small_pools())
    assert [sorted(group.jobs) for group in plan.groups] == [["a", "b"]]
    assert plan.queued == ("c", "d")  # d would fit, but c is before it
    found = Optimal().replay(small_pools(), check=True).metrics
    assert found.wait_s == {"c": 100, "d": 100}
    assert found.peak_gpus == {"rollout": 8, "training": 8}


@pytest.mark.parametrize("objective", ["usd", "work"])
def test_the_same_file_gives_the_same_bytes(objective: str) -> None:
    scenario = stream(3, "iterations", 20, "production")
    first, second = (Optimal(objective).replay(scenario) for _ in range(2))  # type: ignore[arg-type]
    assert replace(first, decision_s=[]) == replace(second, decision_s=[])


@pytest.mark.parametrize("objective", ["usd", "work"])
def test_columns_that_enter_when_they_pay_give_the_same_optimum(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = [make_workload(name, WorkloadOptions(seed=9, jobs=16)) for name in ("rollout-heavy", "mixed", "production")]
    expected = [Optimal(objective).plan(scenario).value for scenario in scenarios]  # type: ignore[arg-type]
    monkeypatch.setattr(program_module, "ALL_AT_ONCE", 20)
    monkeypatch.setattr(partition_module, "FIRST", 10)
    assert [Optimal(objective).plan(scenario).value for scenario in scenarios] == pytest.approx(expected)  # type: ignore[arg-type]


@cache
def hard(objective: Objective, seed: int) -> tuple[Scenario, OptimalPlan]:
    """A problem whose program is not solved at once, and its optimum."""
    scenario = make_workload("rollout-heavy", WorkloadOptions(seed=seed, jobs=22, slo=(1.3, 2.0)))
    return scenario, Optimal(objective).plan(scenario)


@pytest.mark.parametrize("objective", ["usd", "work"])
@pytest.mark.parametrize("limit", [{"node_limit": 0}, {"max_columns": 40}, {"max_columns": 1}])
def test_where_a_limit_bites_the_bound_is_below_the_value_and_the_optimum_between(objective: Objective, limit: Dict) -> None:
    bitten = 0
    for seed in range(3):
        scenario, exact = hard(objective, seed)
        found = Optimal(objective, **limit).plan(scenario)
        assert exact.gap == 0
        assert found.bound <= exact.value * (1 + 1e-9) <= found.value * (1 + 2e-9)
        assert found.gap == pytest.approx((found.value - found.bound) / found.value, abs=1e-12)
        bitten += found.gap > 0
    assert bitten
    replayed = Optimal(objective, **limit).replay(stream(1, jobs=20, name="rollout-heavy"), check=True)
    grouping_gap, bound_usd = replayed.extra["grouping_gap"], replayed.extra["bound_usd"]
    assert grouping_gap is not None and 0 <= grouping_gap < 1
    if objective == "usd":
        assert bound_usd is not None and bound_usd <= replayed.metrics.cost_usd
        assert replayed.extra["gap"] == grouping_gap


def test_it_cannot_run() -> None:
    assert not hasattr(Optimal(), "decide")
    with pytest.raises(InputError, match="objective"):
        Optimal("dollars")  # type: ignore[arg-type]


@given(st.integers(0, 1000))
@draw.examples(5)
def test_the_work_of_optimal_is_never_cheaper_per_hour_than_that_of_optimal_work(seed: int) -> None:
    scenario = make_workload("balanced", WorkloadOptions(seed=seed, jobs=10))
    solo = sum(8 * (1.85 + 5.28) for _ in scenario.jobs) / len(scenario.jobs)
    assert Optimal("work").plan(scenario).value <= solo * (1 + 1e-12)
