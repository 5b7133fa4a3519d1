"""Jobs in shapes other than their own: what replays count by the shape, and what by the job as it is written."""

from __future__ import annotations

from typing import Any

import pytest

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.events import Arrived, Event, Placement, Resumed
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.explain import explain
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import Scenario, parse_scenario

POOL = {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0}


def scenario(*jobs: dict[str, Any], migration_s: float = 100.0) -> Scenario:
    return parse_scenario(
        {"version": 1, "cluster": {"rollout": POOL, "training": POOL, "migration_s": migration_s}, "jobs": [*jobs]}
    )


def wide(**keys: Any) -> dict[str, Any]:
    """A job on three rollout nodes that may have one: T_solo is 20 s, and 50 s in the other shape."""
    shape = {"rollout": {"nodes": 1, "worst_case_s": 40, **keys.pop("shape", {})}}
    return {
        "id": "a",
        "arrival_s": 0,
        "iterations": 100,
        "slo": 3,
        "rollout": {"nodes": 3, "worst_case_s": 10, **keys.pop("rollout", {})},
        "training": {"worst_case_s": 10},
        "shapes": [shape],
        **keys,
    }


def test_work_and_slowdown_are_of_the_job_as_it_is_written() -> None:
    run = replay(scenario(wide()), Algorithm1(), check=True)
    found = metrics(run)
    assert found.work_h == pytest.approx(100 * 20 / 3600)
    assert found.slowdown["a"] == pytest.approx(50 / 20)
    assert found.cost_usd == pytest.approx(2 * 100 * 50 / 3600)


def test_phases_take_what_they_take_in_the_shape_and_are_held_against_the_job_as_it_is_written() -> None:
    """Its own law makes other factors of the same luck: with the same mean and no scatter they are known."""
    law, other = {"mean_fraction": 0.5, "cv": 0}, {"mean_fraction": 0.25, "cv": 0}
    problem = scenario(wide(rollout={"actual": law}, shape={"actual": other, "switch": {"cold_s": 7}}, iterations=4))
    run = replay_events(problem, Algorithm1(), make_dispatch("round-robin"), 0, Watch(check=True, keep_phases=True))
    rollouts = [phase.end_s - phase.start_s for phase in run.phases if phase.phase == "rollout"]
    assert rollouts == pytest.approx([17, 10, 10, 10])
    assert (run.solo_s or {})["a"] == pytest.approx(4 * (5 + 10))


def test_explain_names_the_shape() -> None:
    alternatives = explain(scenario(wide()), Algorithm1(), "a")["alternatives"]
    assert [(row["shape"], row["verdict"]) for row in alternatives] == [(0, "lost: 2.00 $/h more"), (1, "chosen")]


class Reshaping:
    """Places jobs as they are written, in one group, and moves the first into its other shape there when the second has come."""

    keeps_slo = True

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Arrived):
            return ()
        if event.job.id == "a":
            return (Place("a", Placement(None, (), 3, 1)),)
        return Place("b", Placement(0, (1,), 0)), Move("a", Placement(0, (0,), 0, shape=1))


def test_a_move_may_stay_in_its_group_and_change_the_shape() -> None:
    late = {
        "id": "b",
        "arrival_s": 1000,
        "duration_s": 1000,
        "slo": 9,
        "rollout": {"worst_case_s": 5},
        "training": {"worst_case_s": 5},
    }
    run = replay(scenario(wide(iterations=150), late), Reshaping(), check=True)
    assert [event.at_s for event in run.log if isinstance(event, Resumed)] == [1100]
    found = metrics(run)
    assert found.migrations == 1
    # Two nodes beside a's own in the pause: b's, and the one that is left. Then 100 iterations of 50 s, b's for 900 s of them.
    assert found.cost_usd == pytest.approx((4 * 1100 + 3 * 900 + 2 * (5000 - 900)) / 3600)
    assert found.slo_attainment == 1
    event = replay_events(
        scenario(wide(iterations=150), late), Reshaping(), make_dispatch("round-robin"), 0, Watch(check=True, keep_phases=True)
    )
    shaped = [phase for phase in event.phases if phase.job_id == "a" and phase.phase == "rollout" and phase.start_s > 1000]
    assert {len(phase.nodes) for phase in shaped} == {1}
    assert metrics(event).cost_usd == pytest.approx(found.cost_usd, rel=0.02)
