"""Search around a placement policy: the base policy's rules, legal placements, the same answer every time."""

from __future__ import annotations

from typing import Any

import pytest

from policies.placement.search import _INSTANTS, Search, _future
from policies.registry import make_policy, make_runnable, observed_state
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, isolated
from rollmux_env.cluster.plan import Place
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.scenario import parse_scenario
from rollmux_env.scheduler.order import rules_of
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.fleets import with_fleet
from tests.rollmux_env.cluster.twin import CLUSTER, make_job

SHORT = make_workload("production", WorkloadOptions(seed=2, jobs=12))
OPTIONS = "rollouts=1,rows=2"


def test_searched_placements_are_legal_and_the_same_every_time() -> None:
    logs = [replay(SHORT, make_runnable(f"search:first-fit,{OPTIONS}"), check=True).log for _ in range(2)]
    assert logs[0] == logs[1] != replay(SHORT, make_runnable("first-fit")).log


def test_a_fleet_is_served_by_the_rules_of_the_base_policy() -> None:
    policy: Any = make_runnable(f"search:fleet,moves=false,order=area,park=true,{OPTIONS}")
    rules = rules_of(policy)
    assert rules is not None and (rules.name, rules.park) == ("area", True)
    assert policy.rearrange and policy.only_places and not hasattr(policy, "wakes_every_s")
    found = outcome(replay(with_fleet(SHORT, "5+5"), policy, check=True)).metrics
    assert found.mean_completion_h is not None and found.slo_attainment == 1


@pytest.mark.parametrize(("gap_s", "most"), [(0.0, 0), (0.01, _INSTANTS)])
def test_jobs_that_arrived_at_once_do_not_make_a_future_without_end(gap_s: float, most: int) -> None:
    state = State(SHORT.cluster)
    for number, job in enumerate(SHORT.jobs):
        apply(state, Arrived(number * gap_s, job.model_copy(update={"arrival_s": number * gap_s})))
    assert len(_future(state, 0)) == most


def test_a_place_above_the_users_quota_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base policy's place in the user's group needs no new node; a new group, made cheaper here, is above 2 nodes."""
    base: Any = make_policy("first-fit")
    new_groups = []
    for nodes in (None, 2):
        jobs = [make_job(name, 60, 30, user="ann", slo=3) for name in "ab"]
        scenario = parse_scenario({"version": 1, "cluster": {**CLUSTER, "quotas": {"ann": {"nodes": nodes}}}, "jobs": jobs})
        state = State(scenario.cluster)
        first, second = (Arrived(0.0, job) for job in scenario.jobs)
        apply(state, first)
        apply(state, Admitted(0.0, "a", isolated(first.job)))
        apply(state, second)
        own = base.decide(state, second)
        monkeypatch.setattr(Search, "_cost", lambda self, state, plan, coming, own=own: float(plan == own))
        (place,) = Search(base).decide(state, second)
        assert isinstance(place, Place)
        new_groups.append(place.placement.group is None)
    assert new_groups == [True, False]


def test_a_run_knows_the_half_life_of_usage() -> None:
    spec = f"search:solo,order=fair,half_life_h=12,{OPTIONS}"
    assert vars(observed_state(spec, SHORT.cluster).charges)["_half_life_s"] == 12 * 3600


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("search:solo,rollouts=0", "--policy search:solo,rollouts=0: rollouts: must be a whole number, at least 1, not 0"),
        ("search:solo,rows=1", "--policy search:solo,rows=1: rows: must be a whole number, at least 2, not 1"),
        ("search:optimal", "--policy optimal: no one could run it"),
        ("search:solo,rollout=3", "--policy solo,rollout=3: solo has no option 'rollout'"),
    ],
)
def test_an_option_out_of_range_is_one_line(spec: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        make_policy(spec)
    assert str(caught.value).startswith(problem) and "\n" not in str(caught.value)
