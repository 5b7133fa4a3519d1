"""`fleet`, and `time_usd` of policies that price candidates, on fleets that are small enough to work out by hand."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from policies.placement.baselines import Solo
from policies.registry import make_runnable
from rollmux_env.bench.streams import workload
from rollmux_env.cluster.events import Departed, Event
from rollmux_env.cluster.plan import Plan
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.explain import explain
from rollmux_env.replay.fluid import replay
from rollmux_env.report.decision_tables import alternatives_table
from rollmux_env.scenario import Scenario, parse_scenario
from tests.rollmux_env.cluster.twin import CLUSTER, make_job


def _fleet(nodes: int, *jobs: dict[str, Any]) -> Scenario:
    pools = {pool: {**CLUSTER[pool], "max_nodes": nodes} for pool in ("rollout", "training")}
    return parse_scenario({"version": 1, "cluster": pools, "jobs": list(jobs)})


THREE = _fleet(
    1,
    make_job("p", 60, 40, iterations=36, slo=3),
    make_job("q", 40, 60, iterations=36, slo=3),
    make_job("s", 60, 40, iterations=18, slo=3),
)


def _completion_h(scenario: Scenario, policy: str) -> dict[str, float]:
    run = replay(scenario, make_runnable(policy), check=True)
    arrival_s = {job.id: job.arrival_s for job in scenario.jobs}
    return {event.job_id: (event.at_s - arrival_s[event.job_id]) / 3600 for event in run.log if isinstance(event, Departed)}


@pytest.mark.parametrize(
    ("policy", "hours"),
    [
        ("rollmux,prune=false", (1.3, 1.3, 0.8)),
        ("fleet,alpha=0", (1.0, 1.0, 1.5)),  # V is 2 with p and q at a period of 100 s, and 1.875 with all three at 160 s
        ("fleet,alpha=1,known_stays=false", (1.0, 1.0, 1.5)),  # before departures teach lengths, all jobs count alike
        ("fleet,alpha=1", (1.3, 1.3, 0.8)),  # s has half an hour left, so it counts twice: 2.5 is above 2
        ("rollmux,prune=false,time_usd=1e6,alpha=0", (1.0, 1.0, 1.5)),
        ("first-fit,time_usd=1e6,alpha=0", (1.0, 1.0, 1.5)),
        ("consolidate,time_usd=1e6,alpha=0", (1.0, 1.0, 1.5)),
        ("consolidate,time_usd=1e6,alpha=1", (1.3, 1.3, 0.8)),
    ],
)
def test_a_third_job_joins_only_if_the_group_gains_progress(policy: str, hours: tuple[float, ...]) -> None:
    assert _completion_h(THREE, policy) == pytest.approx(dict(zip("pqs", hours, strict=True)))


def test_jobs_are_spread_over_idle_nodes_and_packed_where_there_are_none() -> None:
    jobs = [make_job(name, 45, 55, iterations=36, slo=3) for name in "abc"]
    assert set(_completion_h(_fleet(3, *jobs), "fleet").values()) == {1.0}
    assert sorted(_completion_h(_fleet(2, *jobs), "fleet,moves=false").values()) == pytest.approx([1.0, 1.1, 1.1])


@pytest.mark.parametrize("policy", ["rollmux,prune=false", "first-fit", "consolidate,budget=200"])
def test_a_price_without_time_is_the_price_as_it_was(policy: str) -> None:
    stream = workload("mixed", 0, jobs=12)
    assert replay(stream, make_runnable(f"{policy},time_usd=0")).log == replay(stream, make_runnable(policy)).log
    if policy.startswith("rollmux"):
        assert replay(stream, make_runnable(f"{policy},time_usd=1e9")).log == replay(stream, make_runnable("fleet,moves=false")).log


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("rollmux,time_usd=1", "time_usd: needs prune=false"),
        ("fleet,alpha=-1", "alpha: must be a number"),
        ("fleet,moves=1", "moves: must be true or false"),
        ("consolidate,time_usd=-1", "time_usd: must be a number"),
    ],
)
def test_options_that_mean_nothing_are_refused_in_one_line(policy: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        make_runnable(policy)
    assert "\n" not in str(refused.value)


def test_a_decision_by_progress_is_explained_without_dollars() -> None:
    jobs = [make_job(name, 45, 55, iterations=36, slo=3) for name in "ab"]
    report = explain(_fleet(2, *jobs), make_runnable("fleet,alpha=0"), "b")
    verdicts = {row["verdict"] for row in report["alternatives"]}
    assert verdicts == {"chosen", "lost: score 0.182 lower"}  # alone it gains 1; with the other, both at 100 of 110 s, 0.818
    console = Console(width=100, record=True, file=StringIO())
    console.print(alternatives_table({"policy": "fleet", **report}, 5))
    assert "$" not in console.export_text()


def test_a_subclass_promises_nothing_that_it_may_break() -> None:
    class Moves(Solo):
        def decide(self, state: State, event: Event) -> Plan:
            return super().decide(state, event)

    assert Solo.only_places and not Moves.only_places
    assert Solo.timeless and not Moves.timeless
