"""The course of jobs from a state on is that of the fluid replay, and a change is as if it had been so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.job_results import job_results
from rollmux_env.replay.stays import stays_of
from rollmux_env.replay.whatif import JobForecast, StateChange, forecast_of, project
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.preview import forecast_jobs
from tests.oracle.draw import examples
from tests.oracle.queue_keys import queued
from tests.rollmux_env.cluster.twin import CLUSTER, make_job
from tests.rollmux_env.scheduler.test_preview import of, snapshot, with_all


def replayed(problem: Scenario) -> dict[str, JobForecast]:
    """The course of jobs that all arrive at time 0, by a replay."""
    run = replay(problem, Algorithm1())
    weights = {job.id: job.weight for job in problem.jobs}
    return {one.job: forecast_of(one, weights[one.job]) for one in job_results(problem, run.state, stays_of(run.log))}


def approximately(one: JobForecast) -> Any:
    return pytest.approx({name: value for name, value in vars(one).items() if name != "job"})


@examples(10)
@given(scenario=queued())
def test_a_projection_is_the_rest_of_the_fluid_replay(scenario: dict[str, Any]) -> None:
    problem = parse_scenario({**scenario, "jobs": [{**job, "arrival_s": 0} for job in scenario["jobs"]]})
    first, *others = problem.jobs
    assume(others)
    state = with_all(problem.model_copy(update={"jobs": (first,)}), Algorithm1())
    before = snapshot(state)
    own = {one.job: one for one in project(state, Algorithm1(), StateChange(coming=others))}
    assert snapshot(state) == before
    expected = replayed(problem)
    assert own.keys() == expected.keys()
    for job_id, one in own.items():
        assert {name: value for name, value in vars(one).items() if name != "job"} == approximately(expected[job_id])


@examples(10)
@given(scenario=queued())
def test_without_a_change_placements_are_those_of_the_forecast(scenario: dict[str, Any]) -> None:
    problem = parse_scenario({**scenario, "jobs": [{**job, "arrival_s": 0} for job in scenario["jobs"]]})
    state = with_all(problem, Algorithm1())
    assume(state.waiting)
    own = {one.job: one.admitted_s for one in project(state, Algorithm1(), StateChange())}
    assert {job_id: one.eta_s for job_id, one in forecast_jobs(state, Algorithm1()).waiting.items()} == {
        job_id: own[job_id] for job_id in state.waiting
    }
    stuck = {job_id for group in state.group_list() for job_id in group.jobs}
    lost = {one.job: one.departed_s for one in project(state, Algorithm1(), StateChange(), stuck=stuck)}
    assert set(lost.values()) == {None}


def test_a_leaving_job_and_further_nodes_make_room_at_once() -> None:
    cluster: dict[str, Any] = {name: {**pool, "max_nodes": 1} for name, pool in CLUSTER.items()}
    state = of(*(make_job(name, slo=1, iterations=3) for name in "abc"), **cluster)

    def admitted_s(change: StateChange) -> dict[str, float | None]:
        return {one.job: one.admitted_s for one in project(state, Solo(), change)}

    lasts_s = 3 * state.job("a").solo_s
    assert admitted_s(StateChange()) == {"a": 0, "b": lasts_s, "c": 2 * lasts_s}
    assert admitted_s(StateChange(without=("a", "c"))) == {"b": 0}
    assert admitted_s(StateChange(nodes={"rollout": 2, "training": 2})) == {"a": 0, "b": 0, "c": lasts_s}
    assert admitted_s(StateChange(nodes={"rollout": 2, "training": 1})) == admitted_s(StateChange())
    unfinished = project(state, Solo(), StateChange(), instants=1)
    assert [one.departed_s for one in unfinished] == [lasts_s, None, None]
    assert [one.slo_kept for one in unfinished] == [True, None, None]
