"""Figures that no policy can reach are found out, in a replay and in a score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.commands.leaderboard import replaying_makers
from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.bench.leaderboard import entries
from rollmux_env.bench.leaderboard.tracks import KINDS, Entrant, StreamOutcome
from rollmux_env.bench.possible import check_possible, unwritten
from rollmux_env.errors import PlanError
from rollmux_env.replay.outcome import Outcome
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_workload("mixed", WorkloadOptions(jobs=6))


@pytest.fixture(scope="module")
def honest(scenario: Scenario) -> Outcome:
    return run_task(make_policy, Task("rollmux", 0, scenario)).outcome


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({"cost_usd": -78537.0}, "F1: cost_usd is -78,537, which cannot be"),
        ({"usd_per_work_hour": float("inf")}, "F1: usd_per_work_hour is inf"),
        ({"slo_attainment": 1.5}, "F1: slo_attainment is 1.5"),
        ({"utilization": {"rollout": 0.5, "training": 1.2}}, "F2: the nodes of training were in use for 120.00% of the time"),
    ],
)
def test_figures_of_the_whole(scenario: Scenario, honest: Outcome, figures: dict[str, Any], problem: str) -> None:
    check_possible(honest, scenario)
    with pytest.raises(PlanError) as found:
        check_possible(replace(honest, metrics=replace(honest.metrics, **figures)), scenario)
    assert str(found.value).startswith(problem)


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({"iterations": 1e9}, r"F3: job \S+ did 1e\+09 iterations, and came for"),
        ({"admitted_s": -1.0}, r"F3: job \S+ arrived, was"),
    ],
)
def test_figures_of_a_job(scenario: Scenario, honest: Outcome, figures: dict[str, Any], problem: str) -> None:
    jobs = (replace(honest.jobs[0], **figures), *honest.jobs[1:])
    with pytest.raises(PlanError, match=problem):
        check_possible(replace(honest, jobs=jobs), scenario)


def test_a_scenario_that_was_written_into(scenario: Scenario) -> None:
    job = scenario.jobs[0]
    slo = job.slo
    with pytest.raises(PlanError, match="F4: "), unwritten(scenario, True):
        vars(job)["slo"] = slo + 1
    vars(job)["slo"] = slo
    with unwritten(scenario, True):
        pass


@pytest.mark.parametrize(("kind", "most"), [("groups", 100.0), ("production", 110.0)])
def test_a_score_above_its_bound(monkeypatch: pytest.MonkeyPatch, kind: str, most: float) -> None:
    def scoring(score: float) -> float:
        played = StreamOutcome(2.0 - score / 100, True, 0, 1.0)
        monkeypatch.setitem(KINDS, kind, KINDS[kind]._replace(play=lambda seed, entrant, makers: played))
        return entries.measure(Entrant("own:Policy"), (kind, 0, False), replaying_makers()).score

    monkeypatch.setattr(entries, "_standards", lambda *of: {"sha256": "", "reference": 2.0, "bound": 1.0})
    assert scoring(most) == pytest.approx(most)
    with pytest.raises(PlanError, match=rf"^own:Policy: it scores 4,239\.6 on {kind}, seed 0, where 100 is the yardstick$"):
        scoring(4239.6)
