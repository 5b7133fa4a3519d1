"""Workloads by name: determinism, options, and the cases of Figure 10."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived
from rollmux_env.cluster.plan import carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.workloads import WORKLOADS, make_workload
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.text import to_json
from tests.oracle.draw import examples

GENERATED = [name for name in WORKLOADS if name not in ("philly", "authors")]


@pytest.mark.parametrize("name", GENERATED)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    assert to_json(make_workload(name, WorkloadOptions(seed=5))) == to_json(make_workload(name, WorkloadOptions(seed=5)))


@pytest.mark.parametrize("name", ["production", "mixed", "balanced", "rollout-heavy", "train-heavy"])
def test_another_seed_gives_another_stream(name: str) -> None:
    assert to_json(make_workload(name, WorkloadOptions(seed=5))) != to_json(make_workload(name, WorkloadOptions(seed=6)))


def test_one_option_does_not_reshuffle_the_rest() -> None:
    plain = make_workload("production").jobs
    strict = make_workload("production", WorkloadOptions(slo=(1.1, 1.3))).jobs
    assert [(j.id, j.arrival_s, j.iterations) for j in plain] == [(j.id, j.arrival_s, j.iterations) for j in strict]
    ranks = [sorted(range(200), key=lambda k: jobs[k].slo) for jobs in (plain, strict)]
    assert sum(a == b for a, b in zip(*ranks, strict=True)) > 150  # the same draws, stretched to another range


def test_classes_explain_a_share_of_the_lengths_and_leave_the_stays_as_they_are() -> None:
    def lengths(**options: Any) -> tuple[list[str], Any]:
        jobs = make_workload("mixed", WorkloadOptions(jobs=1000, stays="fixed", **options)).jobs
        return [job.class_name for job in jobs], np.array([job.duration_s for job in jobs])

    (_, plain), (names, stays) = lengths(), lengths(classes=8, explained=0.6)
    assert sorted(plain) == sorted(stays)
    logs, own = np.log(stays), {name: np.array(names) == name for name in names}
    between = sum(mask.sum() * (logs[mask].mean() - logs.mean()) ** 2 for mask in own.values())
    assert len(own) == 8 and between / len(logs) / logs.var() == pytest.approx(0.6, abs=0.05)
    turned = np.log(lengths(classes=8, explained=0.6, turns=1.0)[1])
    first, last = (np.array([turned[half][mask[half]].mean() for mask in own.values()]) for half in (slice(500), slice(500, 1000)))
    assert np.corrcoef(first, last)[0, 1] < -0.8  # after half a turn short classes are long


def test_each_trait_explains_its_part_of_the_lengths() -> None:
    """Users, phases and hours of arrival, alone and together; what explains nothing is only a label."""
    options = WorkloadOptions(seed=3, jobs=1000, stays="fixed", classes=8, users=12, explained=0.6)

    def shares(*traits: str) -> list[float]:
        jobs = make_workload("production", replace(options, explained_by=traits)).jobs  # type: ignore[arg-type]
        solo_s = np.array([job.rollout.worst_case_s + job.training.worst_case_s for job in jobs])
        logs = np.log(np.array([job.duration_s for job in jobs], dtype=float))
        names = [job.class_name for job in jobs], [job.user for job in jobs]
        hours = [int(job.arrival_s / 3600 % 24 / 2) for job in jobs]
        parts = [np.array(labels) for labels in (*names, np.digitize(solo_s, np.quantile(solo_s, np.linspace(0, 1, 12))), hours)]
        between = [sum((part == k).sum() * (logs[part == k].mean() - logs.mean()) ** 2 for k in {*part.tolist()}) for part in parts]
        return [float(total / len(logs) / logs.var()) for total in between]

    for alone, trait in enumerate(("class", "user", "phases", "hour")):
        assert shares(trait) == pytest.approx([0.57 if k == alone else 0.0 for k in range(4)], abs=0.05)
    assert shares("user", "phases", "hour") == pytest.approx([0.0, 0.2, 0.2, 0.2], abs=0.05)


def test_of_jobs_with_the_same_phases_later_ones_are_no_longer() -> None:
    """Half of the jobs of `production` have the same model and cap."""
    jobs = make_workload("production", WorkloadOptions(seed=1, jobs=1000, stays="fixed", explained_by=("phases",))).jobs
    kinds: dict[float, list[float]] = defaultdict(list)
    for job in jobs:
        kinds[job.rollout.worst_case_s + job.training.worst_case_s].append(log(job.duration_s or 0.0))
    logs = max(kinds.values(), key=len)
    assert len(logs) > 300 and abs(np.corrcoef(np.arange(len(logs)), logs)[0, 1]) < 0.15


def test_lists_are_tuples() -> None:
    one: Any = {"slo": 1.5}
    assert WorkloadOptions(**one).slo == (1.5, 1.5)
    given: Any = {"slo": [1.5, 3.0], "explained_by": ["hour", "phases"]}
    options = WorkloadOptions(**given)
    assert (options.slo, options.explained_by) == ((1.5, 3.0), ("hour", "phases")) and hash(options)


def test_an_unknown_workload_is_answered_with_the_names() -> None:
    with pytest.raises(InputError) as caught:
        make_workload("RH")
    assert str(caught.value) == f"workload: must be one of {', '.join(WORKLOADS)}, not 'RH'"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"seed": -1}, "seed: must be at least 0, not -1"),
        ({"seed": True}, "seed: must be a whole number, not true"),
        ({"jobs": 0}, "jobs: must be at least 1, not 0"),
        ({"jobs": 2.0}, "jobs: must be a whole number, not 2.0"),
        ({"max_group_size": 0}, "max_group_size: must be at least 1, not 0"),
        ({"stays": "equal"}, "stays: must be 'iterations' or 'fixed', not 'equal'"),
        ({"switches": "no"}, "switches: must be true or false, not 'no'"),
        ({"third_pool": 1}, "third_pool: must be true or false, not 1"),
        ({"asynchronous": 1.5}, "asynchronous: must be at most 1, not 1.5"),
        ({"asynchronous": True}, "asynchronous: must be a number, not true"),
        ({"semantics": "mine"}, "semantics: must be 'default' or 'paper', not 'mine'"),
        ({"slo": (0.9, 2.0)}, "slo[0]: must be at least 1, not 0.9"),
        ({"slo": (1.5, 1.2)}, "slo: must be low and high, not 1.5 and 1.2"),
        ({"slo": (1.5, float("nan"))}, "slo[1]: must be a finite number"),
        ({"slo": 0.5}, "slo[0]: must be at least 1, not 0.5"),
        ({"slo": "1.5 to 2"}, "slo: must be a list, not '1.5 to 2'"),
        ({"users": -1}, "users: must be at least 0, not -1"),
        ({"explained_by": ("user",)}, "explained_by: user goes with users, of which there are 0"),
        ({"explained_by": ("class", "hour")}, "explained_by: class goes with classes, of which there are 0"),
        ({"explained_by": ("hour", "hour")}, "explained_by: has a trait twice"),
        ({"explained_by": ()}, "explained_by: is empty"),
        ({"explained_by": ("model",)}, "explained_by[0]: must be 'class', 'user', 'phases' or 'hour', not 'model'"),
        ({"window_h": -1.0}, "window_h: must be at least 0, not -1.0"),
        ({"min_stay_h": float("inf")}, "min_stay_h: must be a finite number"),
        ({"min_stay_h": 10**400}, "min_stay_h: must be a number"),
    ],
)
def test_an_option_out_of_range_is_one_line(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        WorkloadOptions(**options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixed", {"semantics": "paper"}),
        ("mixed", {"switches": True}),
        ("mixed", {"third_pool": True}),
        ("micro-temporal", {"asynchronous": 0.5}),
        ("production", {"csv": "trace.csv"}),
        ("production", {"profile": "balanced"}),
        ("micro-temporal", {"jobs": 2}),
        ("micro-temporal", {"stays": "fixed"}),
        ("philly", {"semantics": "paper", "csv": "trace.csv"}),
    ],
)
def test_an_option_without_use_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"the workload {name} has no such option"):
        make_workload(name, WorkloadOptions(**options))  # type: ignore[arg-type]


def test_every_option_is_of_use_to_a_workload() -> None:
    from rollmux_env.workloads import authors, micro, philly, production, profiles

    used = authors.OPTIONS | micro.OPTIONS | philly.OPTIONS | production.OPTIONS | profiles.OPTIONS
    assert used == {option.name for option in fields(WorkloadOptions)}


@given(
    name=st.sampled_from([name for name in GENERATED if not name.startswith("micro")]),
    seed=st.integers(0, 2**63),
    jobs=st.integers(1, 12),
    stays=st.sampled_from(["iterations", "fixed"]),
    slo=st.tuples(st.floats(1, 3), st.floats(0, 3)).map(lambda x: (x[0], x[0] + x[1])),
)
@examples(60)
def test_any_options_give_a_stream_in_order(name: str, seed: int, jobs: int, stays: str, slo: tuple[float, float]) -> None:
    scenario = make_workload(name, WorkloadOptions(seed=seed, jobs=jobs, stays=stays, slo=slo))  # type: ignore[arg-type]
    arrivals_s = [job.arrival_s for job in scenario.jobs]
    assert len(arrivals_s) == jobs and arrivals_s[0] == 0 and arrivals_s == sorted(arrivals_s)
    assert all(slo[0] - 1e-4 <= job.slo <= slo[1] + 1e-4 for job in scenario.jobs)
    assert all((job.iterations is None) == (stays == "fixed") for job in scenario.jobs)


@pytest.mark.parametrize(
    ("name", "solo_s", "period_s", "rollout_nodes", "training_nodes"),
    [
        ("micro-temporal", 257.7, 261.8, 1, 1),
        ("micro-rollout-heavy", 525.4, 525.4, 3, 1),
        ("micro-spatial", 574.6, 574.6, 2, 2),
    ],
)
def test_algorithm_1_comes_to_the_placements_of_figure_10(
    name: str, solo_s: float, period_s: float, rollout_nodes: int, training_nodes: int
) -> None:
    scenario = make_workload(name)
    assert max(job.solo_s for job in scenario.jobs) == pytest.approx(solo_s)
    state, policy = State(scenario.cluster), Algorithm1()
    pins = defaultdict(list)
    for job in scenario.jobs:
        arrived = Arrived(job.arrival_s, job)
        apply(state, arrived)
        for event in carry_out(state, policy.decide(state, arrived), policy.keeps_slo):
            assert isinstance(event, Admitted)
        pins[job.id[0]].append(tuple(state.pins(job.id)))
    (group,) = state.group_list()
    assert group.period_s == pytest.approx(period_s)
    assert (len(group.rollout_nodes), group.training_nodes) == (rollout_nodes, training_nodes)
    if name == "micro-spatial":
        assert sorted(pins["D"]) == [(0,), (1,)] and pins["C"] == [(0, 1)]


def test_ratios_of_the_micro_benchmark_jobs() -> None:
    d, _, e = make_workload("micro-rollout-heavy", WorkloadOptions(switches=True)).jobs
    assert d.rollout.worst_case_s / d.training.worst_case_s == pytest.approx(2.5, rel=0.05)
    assert e.rollout.worst_case_s / e.training.worst_case_s == pytest.approx(6, rel=0.01)
    assert e.training.switch.warm_s == 4.7
