from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.placement.planned import QuantileView, quantile_of, rescaled, running_rows
from policies.registry import make_policy, make_runnable
from rollmux_env.bench.streams import sampled, with_actual, workload
from rollmux_env.cluster.events import Admitted, Arrived, Event
from rollmux_env.cluster.plan import Plan, Policy, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.keys.phases import Actual
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle.draw import examples, scenarios
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job, twins

STREAM = sampled("production", 0, jobs=30)


def by_events(problem: Scenario, policy: Policy, seed: int = 0) -> Run:
    return replay_events(problem, policy, make_dispatch("round-robin"), seed, watch=Watch(check=True))


def test_the_quantile_is_that_of_the_draws() -> None:
    rng = np.random.default_rng(0)
    for mean, cv in ((0.6, 0.25), (0.9, 1.0), (0.5, 0.0)):
        sigma = np.sqrt(np.log1p(cv**2))
        draws = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, 400_000)
        for q in (0.05, 0.5, 0.9, 0.99):
            exact = quantile_of(Actual(mean_fraction=mean, cv=cv, cap=False), q)
            assert exact == pytest.approx(np.quantile(draws, q), rel=0.02)
            assert quantile_of(Actual(mean_fraction=mean, cv=cv), q) == min(exact, 1.0)


@pytest.mark.parametrize("play", [replay, by_events])
def test_quantile_1_is_the_worst_case(play: Callable[[Scenario, Any], Run]) -> None:
    policies = (Algorithm1(), Algorithm1(quantile=1), make_runnable("rollmux,quantile=1.0"))
    first, *others = (play(STREAM, policy).log for policy in policies)
    assert all(log == first for log in others)
    assert all(policy.keeps_slo for policy in policies)
    assert not Algorithm1(quantile=0.99).keeps_slo


def test_a_capped_law_beyond_its_cap_is_the_worst_case() -> None:
    """0.99 of this law is above 1, so the plans are the same, though nothing is promised."""
    assert by_events(STREAM, Algorithm1(quantile=0.99)).log == by_events(STREAM, Algorithm1()).log


@examples(40)
@given(twin=twins(), low=st.floats(0.05, 0.95), high=st.floats(0.05, 0.95))
def test_a_lower_quantile_never_plans_a_longer_period(twin: Twin, low: float, high: float) -> None:
    """Nor a longer cycle or load; the limits stay, and so does who is where."""
    low, high = sorted((low, high))
    law = Actual(mean_fraction=0.7, cv=0.5)
    views = []
    for q in (low, high):
        fraction = quantile_of(law, q)
        views.append(rescaled(twin.state, {row: (fraction, fraction) for row in running_rows(twin.state)}, slo_too=False))
    for name in ("period_s", "cycle_s", "load_s"):
        columns = [getattr(view.tables.groups, name)[twin.state.tables.order] for view in (*views, twin.state)]
        assert (columns[0] <= columns[1] * (1 + 1e-9)).all()
        assert (columns[1] <= columns[2] * (1 + 1e-9)).all()
    for view in views:
        there, here = (one.tables.groups.limit_s[twin.state.tables.order] for one in (view, twin.state))
        assert (there == here).all()
        assert [(g.id, g.jobs, g.rollout_nodes) for g in view.group_list()] == [
            (g.id, g.jobs, g.rollout_nodes) for g in twin.state.group_list()
        ]


@examples(30)
@given(twin=twins())
def test_a_view_changes_nothing_of_the_state(twin: Twin) -> None:
    before = twin.state.copy()
    rows = running_rows(twin.state)
    same = rescaled(twin.state, {row: (1.0, 1.0) for row in rows}, slo_too=True)
    rescaled(twin.state, {row: (0.5, 2.0) for row in rows}, slo_too=True)
    for tables in (("jobs", before), ("groups", before), ("jobs", same), ("groups", same)):
        for column, other in zip(getattr(twin.state.tables, tables[0]), getattr(tables[1].tables, tables[0]), strict=True):
            assert np.array_equal(column, other)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_plans_keep_the_slo_of_the_durations_planned_on(quantile: float) -> None:
    """Whoever is placed finds a group whose planned period is within the limits, which are those of the worst cases."""

    class Watched(Algorithm1):
        seen = 0

        def decide(self, state: State, event: Event) -> Plan:
            plan = super().decide(state, event)
            if isinstance(event, Arrived):
                fraction = quantile_of(Actual(mean_fraction=0.6, cv=0.25), quantile)
                after = state.copy()
                carry_out(after, plan, keeps_slo=False)
                view = rescaled(after, {row: (fraction, fraction) for row in running_rows(after)}, slo_too=False)
                groups = view.tables.groups[view.tables.order]
                assert (groups.period_s <= groups.limit_s * (1 + 1e-9)).all()
                groups = after.tables.groups[after.tables.order]
                broken = groups.period_s > groups.limit_s * (1 + 1e-9)
                self.seen += int(broken.sum())
            return plan

    policy = Watched(prune=False, quantile=quantile)
    by_events(STREAM, policy)
    assert policy.seen > 0  # the worst cases would break them


def test_jobs_close_up_and_the_observed_attainment_falls() -> None:
    """On this stream; the cost need not fall step by step, because Algorithm 1 is greedy."""
    problem = sampled("production", 0, jobs=60)
    low, high = (metrics(by_events(problem, Algorithm1(prune=False, quantile=q))) for q in (0.5, 1.0))
    assert low.cost_usd < 0.95 * high.cost_usd
    assert low.slo_attainment_observed is not None and high.slo_attainment_observed is not None
    assert low.slo_attainment_observed < high.slo_attainment_observed


def test_in_a_fluid_replay_jobs_without_a_law_are_planned_at_the_worst_case() -> None:
    problem = workload("production", 1, jobs=40)
    assert replay(problem, Algorithm1(quantile=0.5)).log == replay(problem, Algorithm1()).log


@examples(40)
@given(data=scenarios(max_jobs=12), quantile=st.floats(0.01, 0.99), events=st.booleans())
def test_any_scenario_can_be_planned_on_a_quantile(data: dict[str, Any], quantile: float, events: bool) -> None:
    for k, job in enumerate(data["jobs"]):
        if k % 2:
            job["rollout"]["actual"] = {"mean_fraction": 0.8, "cv": 0.5, "cap": False}
    problem = parse_scenario(data)
    policy = Algorithm1(quantile=quantile)
    run = by_events(problem, policy) if events else replay(problem, policy, check=True)
    assert sum(isinstance(event, Admitted) for event in run.log) == len(problem.jobs)


def test_what_was_observed_of_others_stands_in_for_a_law() -> None:
    """Twelve jobs give no law; every iteration takes a lognormal share of the worst case. Their spread is found from batches."""
    rng = np.random.default_rng(7)
    law = Actual(mean_fraction=0.6, cv=0.3, cap=False)
    sigma = np.sqrt(np.log1p(law.cv**2))
    jobs = []
    for k in range(12):
        shares = rng.lognormal(np.log(law.mean_fraction) - sigma**2 / 2, sigma, (200, 2))
        drift = [{"iteration": n, "rollout": float(a), "training": float(b)} for n, (a, b) in enumerate(shares)]
        jobs.append(make_job(f"j{k}", 10, 12, slo=1.0, arrival_s=300 * k, iterations=200, drift=drift))

    seen: list[tuple[float, float]] = []

    class Watched(Algorithm1):
        def decide(self, state: State, event: Event) -> Plan:
            if isinstance(event, Arrived):
                assert self._view is not None
                view = self._view(state, event.job.id)
                row = state.row(event.job.id)
                seen.append((view.tables.jobs.rollout_s[row] / 10, view.tables.jobs.training_s[row] / 12))
            return super().decide(state, event)

    by_events(parse_scenario({"version": 1, "cluster": CLUSTER, "jobs": jobs}), Watched(quantile=0.9))
    assert seen[0] == seen[1] == (1, 1)
    for fraction in seen[-1]:
        assert fraction == pytest.approx(quantile_of(law, 0.9), rel=0.1)


def test_what_has_not_happened_yet_changes_nothing() -> None:
    """Without a law, on observed durations: two streams that differ from job 20 on give the same decisions until then."""
    first = workload("production", 0, jobs=30)
    other = with_actual(first, 0.5, 0.1)
    mixed = first.model_copy(update={"jobs": (*first.jobs[:20], *other.jobs[20:])})
    changed_s = first.jobs[20].arrival_s
    logs = [[str(e) for e in by_events(p, Algorithm1(quantile=0.8)).log if e.at_s < changed_s] for p in (first, mixed)]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 40


@pytest.mark.parametrize("quantile", ["0", "-0.5", "1.01", "nan", "true", "half", "[1]"])
def test_what_is_no_quantile_is_refused_in_one_line(quantile: str) -> None:
    with pytest.raises(
        InputError, match=r"^--policy rollmux,quantile=.*: quantile: must be a number above 0 and at most 1"
    ) as refused:
        make_policy(f"rollmux,quantile={quantile}")
    assert "\n" not in str(refused.value)


def test_the_view_is_of_the_job_that_waits_too() -> None:
    problem = with_actual(parse_scenario({"version": 1, "cluster": CLUSTER, "jobs": [make_job("a", 10, 20)]}), 0.5, 0.0)

    class Once:
        keeps_slo = True

        def decide(self, state: State, event: Event) -> Plan:
            if isinstance(event, Arrived):
                view = QuantileView(0.3)(state, "a")
                assert (view.tables.jobs.rollout_s[0], view.tables.jobs.training_s[0]) == pytest.approx((5, 10))
                assert (view.tables.jobs.solo_s[0], view.tables.jobs.limit_s[0]) == pytest.approx((15, 60))
            return Algorithm1().decide(state, event)

    replay(problem, Once())
