"""The lower bound of a stream's dollars: exact where it can be computed by hand, and beaten by no policy for which it holds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.errors import PlanError
from rollmux_env.replay.dollar_bound import USD, USD_PER_WORK_HOUR, _Program, _stay, over, stream_bound
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.conftest import Command
from tests.oracle.draw import scenarios

PRICE = 8 * (1.85 + 5.28)  # of a node of each pool, $/h


def stream(*jobs: dict[str, Any], max_group_size: int = 5) -> Scenario:
    """Jobs on the paper's nodes, whose phases take 50 s each unless they say otherwise."""
    pools = {"rollout": (1.85, "H20"), "training": (5.28, "H800")}
    cluster = {name: {"gpu": gpu, "gpus_per_node": 8, "usd_per_gpu_hour": usd} for name, (usd, gpu) in pools.items()}
    filled = [
        {"id": f"j{k}", "arrival_s": 0, "slo": 2, "rollout": {"worst_case_s": 50}, "training": {"worst_case_s": 50}} | job
        for k, job in enumerate(jobs)
    ]
    return parse_scenario({"version": 1, "cluster": {**cluster, "max_group_size": max_group_size}, "jobs": filled})


def usd(policy: str, scenario: Scenario) -> float:
    """Dollars of a policy."""
    return run_task(make_policy, Task(policy, 0, scenario)).outcome.metrics.cost_usd


def test_it_is_exact_where_it_can_be_computed_by_hand() -> None:
    alone = stream({"iterations": 72})  # two hours of work
    assert stream_bound(alone) == pytest.approx((2 * PRICE, PRICE), rel=1e-4)
    apart = stream({"iterations": 36}, {"iterations": 36, "arrival_s": 9000})
    assert stream_bound(apart).usd == pytest.approx(2 * PRICE, rel=1e-4) == pytest.approx(usd("rollmux", apart), rel=1e-4)
    together = stream({"iterations": 360}, {"iterations": 360})  # take turns on one node of each pool
    assert stream_bound(together).usd == pytest.approx(10 * PRICE, rel=1e-4) == pytest.approx(usd("rollmux", together), rel=1e-4)
    # At fixed stays, a job that keeps an SLO of 2 does half of the work in its stay, and holds its nodes throughout.
    fixed = stream({"duration_s": 7200})
    assert stream_bound(fixed) == pytest.approx((2 * PRICE, PRICE), rel=1e-4)
    # Two of them hold one node of each pool, and do two hours of work each at most, one of which each pool has to itself.
    pair = stream({"duration_s": 7200}, {"duration_s": 7200})
    assert stream_bound(pair) == pytest.approx((2 * PRICE, PRICE / 2), rel=1e-4)


def test_nodes_hold_no_more_jobs_than_their_group_and_their_memory() -> None:
    jobs = [{"duration_s": 3600, "slo": 9}] * 4
    assert stream_bound(stream(*jobs)).usd == pytest.approx(PRICE, rel=1e-4)
    assert stream_bound(stream(*jobs, max_group_size=2)).usd == pytest.approx(2 * PRICE, rel=1e-4)
    full = stream(*jobs).model_dump(mode="json", exclude_none=True)
    full["cluster"]["training"]["node_memory_gb"] = 1000
    for job in full["jobs"]:
        job["training"]["host_memory_gb"] = 400  # two fit on a node
    scenario = Scenario.model_validate(full)
    assert stream_bound(scenario).usd == pytest.approx(8 * (1.85 + 2 * 5.28), rel=1e-4)


@settings(max_examples=8, deadline=None)
@given(drawn=scenarios())
def test_no_policy_beats_it(drawn: dict[str, Any]) -> None:
    scenario = parse_scenario(drawn)
    for policy in ("rollmux,prune=false", "consolidate", "random"):
        try:
            outcome = run_task(make_policy, Task(policy, 0, scenario, bound=True)).outcome
        except PlanError:  # no place for a job
            return
        for name, bound in (("cost_usd", USD), ("usd_per_work_hour", USD_PER_WORK_HOUR)):
            ratio = over(outcome, name, bound)
            assert ratio is None or ratio >= 1 - 1e-6, (policy, name)


@pytest.mark.parametrize("stays", ["iterations", "fixed"])
def test_the_program_has_the_best_prices(stays: Any) -> None:
    scenario = make_workload("production", WorkloadOptions(jobs=15, stays=stays))
    bound, cluster = stream_bound(scenario), scenario.cluster
    prices = np.array([pool.usd_per_node_hour for pool in cluster.pools.values()])
    program = _Program(tuple(_stay(job, cluster) for job in scenario.jobs), prices, np.full(2, 2000.0), cluster.max_group_size)
    best = program.node_prices(0.0)
    assert program.usd(best, 0.0) == pytest.approx(bound.usd, rel=1e-4)
    rng = np.random.default_rng(0)
    for other in (np.zeros_like(best), np.tile(prices, (len(best), 1)), rng.random(best.shape) * prices):
        assert program.usd(other, 0.0) <= bound.usd * (1 + 1e-5), "any prices give a lower bound"
    for policy in ("solo", "rollmux", "consolidate", "optimal", "optimal-work"):
        outcome = run_task(make_policy, Task(policy, 0, scenario, bound=True)).outcome
        assert (over(outcome, "cost_usd", USD) or 0) >= 1 and (over(outcome, "usd_per_work_hour", USD_PER_WORK_HOUR) or 0) >= 1


def test_it_is_shown_where_it_holds(command: Command) -> None:
    words = (
        "bench",
        "production",
        "--set",
        "jobs=8",
        "-p",
        "solo",
        "-p",
        "rollmux",
        "-p",
        "colocated",
        "-p",
        "most-idle",
        "--bound",
    )
    status, out, err = command(*words)
    assert status == 0, err
    assert "bound: no policy that places jobs on arrival and keeps every SLO costs less" in out and "$ / bound" in out
    report = json.loads(command(*words, "--format", "json")[1])
    rows = {row["policy"]: row for row in report["summary"]}
    run = report["runs"][1]
    assert rows["rollmux"]["over_bound"]["mean"] == run["figures"]["cost_usd"] / run["extra"][USD] > 1
    assert "over_bound" not in rows["colocated"], "it holds other nodes"
    assert "over_bound" not in rows["most-idle"] or rows["most-idle"]["slo_attainment"]["mean"] == 1
    swept = command("bench", "production", "--set", "jobs=4", "--bound", "--sweep", "max_group_size=1,2")[1]
    assert "$ / bound" in swept and "no bound" not in swept
    drawn = ("bench", "quickstart", "-p", "solo", "--fidelity", "event")  # phases take less than the worst case
    assert "no bound: " in command(*drawn, "--bound")[1] and "no bound" not in command(*drawn)[1]
    assert "no bound: " in command(*drawn, "--bound", "--sweep", "max_group_size=1,2")[1]
    assert command("bench", "production", "--set", "jobs=4")[1].count("bound") == 0
    assert "a suite has its own" in command("bench", "--suite", "mixed", "--bound")[2]


def test_it_holds_for_no_job_that_waits() -> None:
    scenario = stream({"iterations": 9, "slo": 1}, {"iterations": 9, "slo": 1})
    pools = scenario.cluster.pools
    limited = {name: pool.model_copy(update={"max_nodes": 1}) for name, pool in pools.items()}
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.with_pools(limited)})
    assert run_task(make_policy, Task("solo", 0, scenario, bound=True)).outcome.extra[USD] is None
