"""`resubmit`: where durations drift, a job is placed anew; where they do not, nothing moves."""

from __future__ import annotations

import pytest

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.placement.resubmit import Resubmit
from rollmux_env.bench.streams import drifting
from rollmux_env.cluster.events import Admitted, Moved
from rollmux_env.cluster.plan import Policy
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.rollmux_env.cluster.twin import CLUSTER, make_job


def by_events(problem: Scenario, policy: Policy) -> Run:
    return replay_events(problem, policy, make_dispatch("round-robin"), 0, watch=Watch(check=True))


def moved(run: Run) -> list[str]:
    return [event.job_id for event in run.log if isinstance(event, Moved)]


@pytest.mark.parametrize(("factor", "movers"), [(1.0, []), (3.0, ["b"])])
def test_the_newest_member_leaves_a_group_that_drift_has_filled(factor: float, movers: list[str]) -> None:
    """b fits into a's bubbles; three times as long it makes a break its SLO, and gets nodes of its own."""
    drift = [{"iteration": 5, "rollout": factor, "training": factor}]
    jobs = [make_job("a", 60, 60, slo=2, iterations=400), make_job("b", 55, 55, slo=9, iterations=300, drift=drift)]
    problem = parse_scenario({"version": 1, "cluster": CLUSTER, "jobs": jobs})
    run = by_events(problem, Resubmit())
    assert [event.placement.strategy for event in run.log if isinstance(event, Admitted)] == ["isolated", "direct_packing"]
    assert moved(run) == movers


def test_nothing_is_observed_in_a_fluid_replay_so_it_is_algorithm_1_there() -> None:
    problem = drifting("production", "mixed", 0, jobs=30)
    found, static = (replay(problem, policy, check=True) for policy in (Resubmit(), Algorithm1()))
    assert moved(found) == [] and metrics(found).cost_usd == metrics(static).cost_usd


def test_it_keeps_more_slos_than_static_placement_where_phases_become_longer() -> None:
    problem = drifting("production", "increasing", 1, jobs=60)
    found, static = (metrics(by_events(problem, policy)) for policy in (Resubmit(), Algorithm1()))
    assert found.slo_attainment_observed is not None and static.slo_attainment_observed is not None
    assert found.migrations > 0
    assert found.slo_attainment_observed >= static.slo_attainment_observed
