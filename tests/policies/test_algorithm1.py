"""`rollmux` decides as Algorithm 1 is printed: the same plan as the naive planner, with and without limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.events import Arrived, Departed
from rollmux_env.cluster.plan import Place, Policy, Wait
from rollmux_env.replay.admission import Admission, admit_all
from rollmux_env.scenario import parse_scenario
from tests.oracle import planner
from tests.oracle.draw import examples, linked, scenarios
from tests.oracle.plan import plan as naive_plan
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job


def admit(*jobs: dict[str, Any], policy: Policy | None = None, **cluster: Any) -> Admission:
    return admit_all(parse_scenario({"version": 1, "cluster": {**CLUSTER, **cluster}, "jobs": list(jobs)}), policy or Algorithm1())


def plan(*jobs: dict[str, Any], policy: Policy | None = None, **cluster: Any) -> list[tuple[str, int | None, tuple[int, ...]]]:
    return [(d.strategy, d.group, d.rollout_nodes) for d in admit(*jobs, policy=policy, **cluster).decisions]


@pytest.mark.parametrize("limited", [True, False])
@examples(60)
@given(data=st.data())
def test_plans_are_those_of_the_naive_planner(limited: bool, data: st.DataObject) -> None:
    of = partial(scenarios, max_jobs=14, limited=limited, shaped=True, pooled=data.draw(st.booleans()))
    scenario = data.draw(of(fine=True) | of().flatmap(linked))
    expected = naive_plan(scenario)
    admission = admit_all(parse_scenario(scenario), Algorithm1())
    for found, naive in zip(admission.decisions, expected["decisions"], strict=True):
        assert (found.job, found.strategy, found.group) == (naive["job"], naive["strategy"], naive["group"])
        assert list(found.rollout_nodes) == naive["rollout_nodes"]
        assert list(found.training_nodes) == naive["training_nodes"]
        assert found.shape == naive.get("shape")
        assert found.delta_usd_per_hour == pytest.approx(naive["delta_usd_per_hour"], abs=1e-9)
    for group, naive in zip(admission.groups, expected["groups"], strict=True):
        assert (group.id, list(group.jobs)) == (naive["id"], naive["jobs"])
        assert group.period_s == pytest.approx(naive["period_s"], rel=1e-12)
        assert group.slowdown == pytest.approx(naive["slowdown"], rel=1e-12)
        assert group.usd_per_hour == pytest.approx(naive["usd_per_hour"], rel=1e-12)
    assert admission.usd_per_hour == pytest.approx(expected["usd_per_hour"], rel=1e-12)


def test_direct_packing_before_rollout_scaling_before_isolated() -> None:
    """a leaves 10 of 30 seconds of its rollout node free; b needs 8 of them, c 15, and d trains too long for the pool."""
    jobs = [
        make_job("a", 20, 10, slo=1),
        make_job("b", 8, 8, slo=2),
        make_job("c", 15, 5, slo=2),
        make_job("d", 5, 25, slo=1.1),
    ]
    assert plan(*jobs) == [
        ("isolated", 0, (0,)),
        ("direct_packing", 0, (0,)),
        ("rollout_scaling", 0, (1,)),
        ("isolated", 1, (0,)),
    ]


def test_behind_a_job_that_does_not_fit_all_are_queued() -> None:
    limits: dict[str, Any] = {pool: {**CLUSTER[pool], "max_nodes": 2} for pool in ("rollout", "training")}
    jobs = [
        make_job("a", 10, 30, slo=1),
        make_job("wide", 10, 30, slo=1, rollout={"nodes": 2}, training={"nodes": 2}),
        make_job("small", 10, 30, slo=1),
    ]
    assert plan(*jobs, **limits) == [("isolated", 0, (0,)), ("queued", None, ()), ("queued", None, ())]


def test_jobs_are_taken_in_order_of_arrival() -> None:
    late, early = make_job("late", 5, 5, slo=9, arrival_s=9), make_job("early", 20, 10, slo=1)
    assert [(d.job, d.strategy) for d in admit(late, early).decisions] == [("early", "isolated"), ("late", "direct_packing")]


def test_without_pruning_a_saturated_group_is_searched_too() -> None:
    jobs = [make_job(name, slo=3) for name in "abc"]
    assert [strategy for strategy, *_ in plan(*jobs)] == ["isolated", "direct_packing", "isolated"]
    assert [strategy for strategy, *_ in plan(*jobs, policy=Algorithm1(prune=False))] == ["isolated"] + ["direct_packing"] * 2


def test_it_lets_a_job_wait_and_never_moves_one() -> None:
    limits: dict[str, Any] = {pool: {**CLUSTER[pool], "max_nodes": 1} for pool in ("rollout", "training")}
    twin = Twin(limits)
    twin.arrive(make_job("a", 10, 30, slo=1))
    policy = Algorithm1()
    (place,) = policy.decide(twin.state, arrived(twin, "a"))
    assert isinstance(place, Place)
    twin.admit(planner.read_job(make_job("a", 10, 30, slo=1)), place.placement)
    twin.arrive(make_job("b", 10, 30, slo=1))
    assert policy.decide(twin.state, arrived(twin, "b")) == (Wait("b"),)
    twin.depart("a")
    assert policy.decide(twin.state, Departed(0.0, "a")) == ()


def arrived(twin: Twin, job_id: str) -> Arrived:
    return Arrived(twin.state.now_s, twin.state.job(job_id))
