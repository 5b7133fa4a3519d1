"""What is said of jobs that wait, or would, is what happens; and nothing of it has happened then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Random, Solo
from rollmux_env.cluster.candidates import _fill, candidates
from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.keys.job import Job
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.facts import Queued
from rollmux_env.scheduler.preview import WaitForecast, forecast_arrivals, forecast_jobs
from tests.oracle.draw import examples
from tests.oracle.queue_keys import queued
from tests.rollmux_env.cluster.twin import CLUSTER, make_job, model

NODES = {name: {**pool, "max_nodes": 2} for name, pool in CLUSTER.items()}


def waiting(state: State, policy: Policy, instants: int = 500) -> list[WaitForecast]:
    return [*forecast_jobs(state, policy, instants).waiting.values()]


def with_all(scenario: Scenario, policy: Policy, observed: bool = False) -> State:
    """The state in which all jobs of a scenario have come at time 0."""
    state = State(scenario.cluster, observed)
    Scheduler(state, policy).step(0.0, [Queued(job.model_copy(update={"arrival_s": 0.0})) for job in scenario.jobs])
    return state


def of(*jobs: dict[str, Any], policy: Policy | None = None, **cluster: Any) -> State:
    scenario = parse_scenario({"version": 1, "cluster": {**NODES, **cluster}, "jobs": list(jobs)})
    return with_all(scenario, policy or Solo())


def snapshot(state: State) -> list[Any]:
    """All that could change."""
    tables = [state.tables.jobs.tobytes(), state.tables.groups.tobytes(), state.tables.order.tolist()]
    shares = [(state.charges.share(row), state.charges.usd(row, 1e6)) for row in range(state.arrived)]
    return [*tables, [*state.waiting], state.now_s, state.rollout_nodes, state.training_nodes, state.arrived, shares]


@pytest.mark.parametrize("policy", [Algorithm1, Solo])
@examples(20)
@given(scenario=queued())
def test_expected_times_are_those_of_the_fluid_replay(policy: type[Policy], scenario: dict[str, Any]) -> None:
    problem = parse_scenario({**scenario, "jobs": [{**job, "arrival_s": 0} for job in scenario["jobs"]]})
    state = with_all(problem, policy())
    assume(state.waiting)
    before = snapshot(state)
    views = waiting(state, policy())
    assert snapshot(state) == before
    admitted = {event.job_id: event.at_s for event in replay(problem, policy()).log if isinstance(event, Admitted)}
    assert [(one.job_id, one.position) for one in views] == [(job_id, k) for k, job_id in enumerate(state.waiting, 1)]
    assert [one.eta_s for one in views] == [pytest.approx(admitted[one.job_id]) for one in views]
    assert all(one.reason for one in views)


@examples(20)
@given(scenario=queued())
def test_a_preview_is_what_an_arrival_gives(scenario: dict[str, Any]) -> None:
    problem = parse_scenario(scenario)
    state = with_all(problem.model_copy(update={"jobs": problem.jobs[:-1]}), Algorithm1()) if len(problem.jobs) > 1 else None
    assume(state is not None)
    assert state is not None
    before = snapshot(state)
    job = problem.jobs[-1].model_copy(update={"arrival_s": 0.0})
    (foretold,) = forecast_arrivals(state, Algorithm1(), job)
    assert snapshot(state) == before
    usd_per_hour = state.usd_per_hour
    after = with_all(problem, Algorithm1())
    assert foretold.fits == after.is_running(job.id)
    if foretold.fits:
        group = after.group_of(job.id)
        assert (foretold.group, foretold.period_s, foretold.position, foretold.eta_s) == (group.id, group.period_s, None, 0.0)
        assert foretold.slowdown.keys() == {*group.jobs} and foretold.reason == ""
        assert foretold.delta_usd_per_hour == pytest.approx(after.usd_per_hour - usd_per_hour)
    else:
        (view,) = [one for one in waiting(after, Algorithm1()) if one.job_id == job.id]
        assert (foretold.position, foretold.eta_s, foretold.reason) == (view.position, view.eta_s, view.reason)
    assert foretold.done_eta_s == forecast_jobs(after, Algorithm1()).done_s.get(job.id)


@examples(20)
@given(scenario=queued())
def test_a_preview_of_two_is_that_of_one_after_the_other(scenario: dict[str, Any]) -> None:
    problem = parse_scenario(scenario)
    assume(len(problem.jobs) > 2)
    *_, first, second = problem.jobs
    state, later = (with_all(problem.model_copy(update={"jobs": problem.jobs[:-left]}), Algorithm1()) for left in (2, 1))
    before = snapshot(state)
    both = forecast_arrivals(state, Algorithm1(), first, second)
    assert snapshot(state) == before
    assert both == (*forecast_arrivals(state, Algorithm1(), first), *forecast_arrivals(later, Algorithm1(), second))


def test_reasons_say_who_is_ahead_and_what_it_needs() -> None:
    wide: dict[str, Any] = {"rollout": {"nodes": 2}}
    state = of(make_job("a", slo=1), make_job("b", slo=1, priority=2, **wide), make_job("c", slo=1), max_group_size=1)
    assert [(one.job_id, one.eta_s, one.reason) for one in waiting(state, Solo())] == [
        ("b", 200, "needs 2 rollout nodes for a group of its own; 1 is free; 1 group: the group is full"),
        ("c", 400, "waits behind b of priority 2, which needs 2 rollout nodes; 1 is free"),
    ]


def test_reasons_give_both_sides_of_the_slo_that_is_in_the_way() -> None:
    state = of(*(make_job(name, 19, 1, slo=1) for name in "abc"), policy=Algorithm1(), rollout={**NODES["rollout"], "max_nodes": 1})
    first = waiting(state, Algorithm1())[0]
    assert first.reason == (
        "needs 1 rollout node for a group of its own; 0 are free; "
        "1 group: an iteration would take 38 s, and the SLO of a allows 1 x 20 s = 20 s; slo: 1.9 would do"
    )


def test_a_quota_is_a_reason() -> None:
    state = of(make_job("a", user="ann"), make_job("b", user="ann"), quotas={"ann": {"nodes": 2}}, max_group_size=1)
    (view,) = waiting(state, Solo())
    assert view == ("b", 1, 200.0, "user ann holds 2 of 2 nodes")
    mine: Job = model(make_job("c", user="ann"))
    first, second = forecast_arrivals(state, Solo(), mine, model(make_job("d")))
    assert first.reason == "user ann holds 2 of 2 nodes" and second.fits


def test_beyond_so_many_instants_a_time_is_unknown() -> None:
    state = of(*(make_job(name, slo=1) for name in "abcdef"))
    assert [one.eta_s for one in waiting(state, Solo(), instants=1)] == [200, 200, None, None]


def test_of_an_observed_state_jobs_go_on_from_now_at_their_period() -> None:
    scenario = parse_scenario({"version": 1, "cluster": NODES, "jobs": [make_job(name, slo=1) for name in "abc"]})
    state = with_all(scenario, Solo(), observed=True)
    state.now_s = 50.0
    before = snapshot(state)
    assert [one.eta_s for one in waiting(state, Solo())] == [250]
    assert snapshot(state) == before and state.observed


def test_the_policy_that_is_asked_is_a_copy() -> None:
    state, policy = of(*(make_job(name, slo=1) for name in "abc")), Random(3)
    before = str(vars(policy)["_random"].bit_generator.state)
    waiting(state, policy)
    assert str(vars(policy)["_random"].bit_generator.state) == before


class Uncopied(Solo):
    """A policy with something that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a lock")


def test_a_policy_that_cannot_be_copied_is_said_to_be_so() -> None:
    with pytest.raises(PlanError, match="the policy cannot be copied: TypeError"):
        waiting(of(*(make_job(name, slo=1) for name in "abc")), Uncopied())


def test_looking_ahead_in_a_thread_leaves_what_is_decided_meanwhile_alone() -> None:
    """Both enumerate candidates, and each has rows of its own for them."""
    state = of(*(make_job(name, slo=1) for name in "abc"), policy=Algorithm1())
    mine = candidates(state, "c")
    rows = [_fill(state.view, state.row("c"), only_improving=False, prune=False)]
    with ThreadPoolExecutor(1) as thread:
        rows.append(thread.submit(_fill, state.view, state.row("c"), False, False).result())
    assert not np.shares_memory(*rows)
    assert mine.group.tolist() == rows[0]["group"].tolist() == rows[1]["group"].tolist()
