"""`consolidate`: its plans are valid, its moves pay for themselves, and it knows no more than it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.placement.consolidate import Consolidate
from policies.placement.consolidate.stays import LearnedStays
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement
from rollmux_env.cluster.plan import Move, Place, Plan, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.oracle.draw import examples, scenarios

POOLS = {
    "rollout": {"gpus_per_node": 8, "usd_per_gpu_hour": 1.85},
    "training": {"gpus_per_node": 8, "usd_per_gpu_hour": 5.28},
}


def scenario(*jobs: dict[str, Any], **cluster: Any) -> Scenario:
    filled = [{"id": f"j{k}", "arrival_s": k, "slo": 2, **job} for k, job in enumerate(jobs)]
    return parse_scenario({"version": 1, "cluster": {**POOLS, **cluster}, "jobs": filled})


def phases(rollout_s: float, training_s: float, **job: Any) -> dict[str, Any]:
    return {"rollout": {"worst_case_s": rollout_s}, "training": {"worst_case_s": training_s}, **job}


def apart(stream: Scenario, at_s: float) -> State:
    """The stream's jobs since time 0 on nodes of their own, seen at a later time."""
    state = State(stream.cluster)
    for job in stream.jobs:
        apply(state, Arrived(0.0, job))
        alone = Placement(None, (), job.rollout.nodes, job.training.nodes)
        carry_out(state, (Place(job.id, alone),), keeps_slo=True)
    state.now_s = float(at_s)
    return state


def longer(data: dict[str, Any], times: int) -> dict[str, Any]:
    """The same jobs with longer stays, in which moves can pay."""
    stretched = []
    for job in data["jobs"]:
        stay = {name: times * job[name] for name in ("iterations", "duration_s") if name in job}
        stretched.append({**job, **stay, "arrival_s": times // 4 * job["arrival_s"]})
    return {**data, "jobs": stretched}


def moves_in(run: Run) -> list[Moved]:
    return [event for event in run.log if isinstance(event, Moved)]


@pytest.mark.parametrize("known_stays", [True, False])
@pytest.mark.hypothesis
def test_random_streams_are_planned_within_all_limits_and_slos(known_stays: bool) -> None:
    @examples(40)
    @given(scenarios(max_jobs=9))
    def holds(data: dict[str, Any]) -> None:
        run = replay(parse_scenario(longer(data, 400)), Consolidate(budget=600, known_stays=known_stays), check=True)
        assert metrics(run).slo_attainment == 1.0

    holds()


@pytest.mark.parametrize("known_stays", [True, False])
@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_streams_with_many_moves_keep_every_slo(stays: Any, known_stays: bool) -> None:
    """Jobs on one and two nodes; hypothesis draws other streams when other modules are loaded, these stay as they are."""
    stream = make_workload("production", WorkloadOptions(seed=3, jobs=40, stays=stays))
    found = metrics(replay(stream, Consolidate(budget=600, known_stays=known_stays), check=True))
    assert found.slo_attainment == 1.0
    assert found.migrations > 40, "else the stream says nothing about moves"


@examples(25)
@given(scenarios(max_jobs=6), st.integers(0, 3))
def test_plans_hold_where_progress_is_observed(data: dict[str, Any], seed: int) -> None:
    replay_events(
        parse_scenario(longer(data, 40)), Consolidate(budget=400), make_dispatch("round-robin"), seed, watch=Watch(check=True)
    )


def test_jobs_on_many_nodes_and_scarce_pools() -> None:
    wide = {"rollout": {"worst_case_s": 200, "nodes": 3}, "training": {"worst_case_s": 150, "nodes": 2}, "sync_s": 10}
    pools = {name: {**pool, "max_nodes": 9} for name, pool in POOLS.items()}
    jobs = [
        {**(wide if k % 3 == 0 else phases(100 + 20 * k, 90)), "arrival_s": 900 * k, "iterations": 60 + 7 * k, "slo": 1.6}
        for k in range(14)
    ]
    found = metrics(replay(scenario(*jobs, **pools), Consolidate(budget=2000), check=True))
    assert found.slo_attainment == 1.0 and found.migrations > 0
    assert max(found.peak_gpus.values()) <= 72


@pytest.mark.parametrize("stay", [{"duration_s": 36_000}, {"iterations": 200}])
def test_two_lone_jobs_become_one_group_when_the_stay_is_long(stay: dict[str, Any]) -> None:
    state = apart(scenario(phases(100, 40, **stay), phases(90, 40, **stay)), 7200)
    (move,) = Consolidate().decide(state, Departed(state.now_s, "gone"))
    assert isinstance(move, Move)
    before = state.usd_per_hour
    carry_out(state, (move,), keeps_slo=True)
    assert len(state.tables.order) == 1
    assert state.usd_per_hour == pytest.approx(before + move.placement.new_rollout_nodes * 14.8), (
        "the nodes left are paid for in the pause"
    )


def test_a_move_that_would_not_pay_is_not_made() -> None:
    pair = [phases(100, 40, duration_s=36_000), phases(90, 40, duration_s=36_000)]
    ends = apart(scenario(*pair), 36_000 - 200)
    assert Consolidate().decide(ends, Departed(ends.now_s, "gone")) == (), "both leave before the pause would end"
    tight = apart(scenario(*(phases(50, 100, duration_s=36_000, slo=1.1) for _ in range(2))), 30_000)
    assert Consolidate().decide(tight, Departed(tight.now_s, "gone")) == (), "the two do not fit into one group"
    young = apart(scenario(*pair), 100)
    assert Consolidate().decide(young, Departed(young.now_s, "gone")) == (), "no time for the pause yet"


def test_slowing_down_jobs_with_work_to_do_is_weighed_against_the_dollars_saved() -> None:
    """Two jobs that fill the nodes: together they take nearly twice as long, so only a fixed stay gains by sharing."""
    for stay, moves in (({"duration_s": 360_000.0}, 1), ({"iterations": 1000}, 0)):
        jobs = [phases(100, 2, slo=2.5, **stay), phases(100, 2, slo=2.5, **stay)]
        dear_rollouts = {"rollout": {"gpus_per_node": 8, "usd_per_gpu_hour": 50}, "training": POOLS["training"]}
        state = apart(scenario(*jobs, **dear_rollouts), 36_000)
        plan = Consolidate(horizon_h=1e3).decide(state, Departed(state.now_s, "gone"))
        crowded = [action for action in plan if isinstance(action, Move) and not action.placement.new_rollout_nodes]
        assert len(crowded) == moves


def test_nothing_moves_where_the_pause_is_too_long() -> None:
    stream = make_workload("production", WorkloadOptions(jobs=40, stays="fixed", slo=(1.0, 2.0)))
    patient = stream.model_copy(update={"cluster": stream.cluster.model_copy(update={"migration_s": 1e7})})
    assert not moves_in(replay(patient, Consolidate(), check=True))
    assert moves_in(replay(stream, Consolidate(), check=True))


def test_a_saving_has_to_exceed_the_double_provisioning() -> None:
    """With pauses of a length that the SLO allows and a horizon shorter than them, a move only costs."""
    stream = scenario(*(phases(100, 40, duration_s=360_000) for _ in range(2)), migration_s=7200)
    state = apart(stream, 72_000)
    assert Consolidate(horizon_h=0.5).decide(state, Departed(state.now_s, "gone")) == ()
    assert len(Consolidate(horizon_h=50.0).decide(state, Departed(state.now_s, "gone"))) == 1


@pytest.mark.parametrize("stays", ["fixed", "iterations"])
@pytest.mark.parametrize("known_stays", [True, False])
def test_it_beats_algorithm_1(stays: Any, known_stays: bool) -> None:
    stream = make_workload("production", WorkloadOptions(jobs=60, stays=stays, seed=3))
    ours = metrics(replay(stream, Consolidate(budget=1500, known_stays=known_stays), check=True))
    theirs = metrics(replay(stream, Algorithm1(prune=False)))
    assert ours.slo_attainment == 1.0
    assert ours.cost_usd < 0.95 * theirs.cost_usd
    assert ours.usd_per_work_hour < 0.95 * theirs.usd_per_work_hour


def test_stays_are_learned_as_well_where_exposure_is_counted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster where thousands run."""
    stream = make_workload("production", WorkloadOptions(jobs=40, seed=3))
    every_time = metrics(replay(stream, Consolidate(budget=600, known_stays=False)))
    monkeypatch.setattr("policies.placement.consolidate.stays._SHARE", 4)
    now_and_then = metrics(replay(stream, Consolidate(budget=600, known_stays=False), check=True))
    assert now_and_then.slo_attainment == 1.0
    assert now_and_then.usd_per_work_hour == pytest.approx(every_time.usd_per_work_hour, rel=0.03)


def test_the_same_stream_gives_the_same_events() -> None:
    stream = make_workload("mixed", WorkloadOptions(jobs=50))
    logs = [replay(stream, Consolidate(budget=1000)).log for _ in range(2)]
    assert logs[0] == logs[1]


@dataclass
class Noted:
    """A policy, and all that it decided."""

    policy: Consolidate
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    keeps_slo: bool = True

    def decide(self, state: State, event: Event) -> Plan:
        plan = self.policy.decide(state, event)
        self.plans.append((state.now_s, plan))
        return plan


@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_unknown_stays_are_not_known(stays: Any) -> None:
    """Two streams are the same until the first departure that differs; so are all decisions until then."""
    stream = make_workload("production", WorkloadOptions(jobs=70, stays=stays, seed=5))
    first = replay(stream, Consolidate(budget=400, known_stays=False, horizon_h=20.0))
    leaves_s = {event.job_id: event.at_s for event in first.log if isinstance(event, Departed)}
    until_s = float(np.median(list(leaves_s.values())))
    name = "duration_s" if stays == "fixed" else "iterations"
    later = [job.model_copy(update={name: 3 * getattr(job, name)}) if leaves_s[job.id] > until_s else job for job in stream.jobs]
    other = stream.model_copy(update={"jobs": tuple(later)})
    plans = []
    for known in (False, True):
        for variant in (stream, other):
            noted = Noted(Consolidate(budget=400, known_stays=known, horizon_h=20.0))
            replay(variant, noted)
            plans.append([(at_s, plan) for at_s, plan in noted.plans if at_s < until_s])
    assert len(plans[0]) > 20
    assert plans[0] == plans[1]
    assert plans[2] != plans[3], "with known stays the futures do show: else the test sees nothing"


def test_stays_are_learned_from_departures_and_from_those_still_there() -> None:
    stream = scenario(*(phases(100, 40, duration_s=1e6) for _ in range(40)))
    state = State(stream.cluster)
    learned = LearnedStays()
    for job in stream.jobs:
        apply(state, Arrived(0.0, job))
        apply(state, Admitted(0.0, job.id, Placement(None, (), 1, 1)))
    before, _ = learned.estimate(state, np.arange(40), 1e4)
    assert np.ptp(before) == 0.0
    for k in range(30):
        apply(state, Departed(3600 * 1.5, f"j{k}"))
    short, iterations = learned.estimate(state, np.arange(30, 40), 1e4)
    assert short[0] < 0.8 * before[0], "three quarters left within two hours"
    assert np.isinf(iterations).all()
    state.now_s = 3600 * 20.0
    old, _ = learned.estimate(state, np.arange(30, 40), 1e4)
    assert old[0] > 1.2 * short[0], "who is still there after twenty hours stays long"


def test_a_job_that_waits_has_not_left() -> None:
    stream = scenario(*(phases(100, 40, duration_s=1e6) for _ in range(2)))
    state = State(stream.cluster)
    learned = LearnedStays()
    for job in stream.jobs:
        apply(state, Arrived(0.0, job))
    apply(state, Admitted(0.0, "j0", Placement(None, (), 1, 1)))
    before, _ = learned.estimate(state, np.array([0, 1]), 10.0)
    after, _ = learned.estimate(state, np.array([0]), 10.0)
    assert before[0] == after[0]
    apply(state, Admitted(0.0, "j1", Placement(None, (), 1, 1)))
    learned.estimate(state, np.array([0, 1]), 10.0)
    apply(state, Departed(0.0, "j1"))
    taught, _ = learned.estimate(state, np.array([0]), 10.0)
    assert taught[0] < after[0]


@pytest.mark.parametrize(
    "options", [{"horizon_h": 0}, {"horizon_h": True}, {"horizon_h": "x"}, {"budget": -1}, {"budget": 1.5}, {"known_stays": 1}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Consolidate(**options)
