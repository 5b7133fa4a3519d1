from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import DISPATCH, make_dispatch
from policies.dispatch.rules import RoundRobin
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import ColocatedJobs, Solo
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement, Progressed, isolated
from rollmux_env.cluster.plan import Move, Place, Plan, Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.tables import Floats
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import Migration, TailModel
from tests.oracle import draw
from tests.oracle.draw import examples

POOL = {"gpus_per_node": 1, "usd_per_gpu_hour": 36}
NOISY = {"actual": {"mean_fraction": 0.6, "cv": 0.4}}


def job(name: str, rollout: Any = 10, training: Any = 5, arrival: float = 0, **more: Any) -> dict[str, Any]:
    """A job of the two phases; `rollout` and `training` may be whole blocks."""
    stay = {} if "duration_s" in more else {"iterations": 10}
    phases = {"rollout": rollout, "training": training}
    phases = {key: value if isinstance(value, dict) else {"worst_case_s": value} for key, value in phases.items()}
    return {"id": name, "arrival_s": arrival, "slo": 4, **stay, **phases, **more}


def scenario(*jobs: dict[str, Any], **cluster: Any) -> Scenario:
    return parse_scenario({"version": 1, "cluster": {"rollout": POOL, "training": POOL, **cluster}, "jobs": list(jobs)})


@dataclass
class Together:
    """Everybody in one group: the first job opens it, the others are pinned as listed, by default to node 0.

    `moves` are made when the job named first departs; `seen` notes the progress that the policy was shown.
    """

    pins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    moves: dict[str, tuple[Move, ...]] = field(default_factory=dict)
    seen: list[tuple[float, str, float]] = field(default_factory=list)
    keeps_slo: bool = False

    def decide(self, state: State, event: Event) -> Plan:
        self.seen += [(event.at_s, name, state.iterations_done(name)) for group in state.group_list() for name in group.jobs]
        if isinstance(event, Departed):
            return self.moves.get(event.job_id, ())
        assert isinstance(event, Arrived)
        name = event.job.id
        if not state.tables.order.size:
            return (Place(name, isolated(event.job)),)
        group = state.group_list()[0].id
        return (Place(name, Placement(group, self.pins.get(name, (0,)), self.new.get(name, 0))),)


def played(problem: Scenario, policy: Policy | None = None, dispatch: str = "round-robin", seed: int = 0, **more: Any) -> Run:
    return replay_events(
        problem, policy or Together(), make_dispatch(dispatch), seed, watch=Watch(check=True, keep_phases=True), **more
    )


def departures(run: Run) -> dict[str, float]:
    return {event.job_id: event.at_s for event in run.log if isinstance(event, Departed)}


def starts(run: Run, phase: str = "rollout") -> list[tuple[str, float]]:
    return [(entry.job_id, entry.start_s) for entry in sorted(run.phases, key=lambda entry: entry.start_s) if entry.phase == phase]


@pytest.mark.parametrize("dispatch", DISPATCH)
def test_a_job_alone_takes_exactly_its_solo_run(dispatch: str) -> None:
    switch = {"switch": {"warm_s": 1.7, "cold_s": 38.8}}
    drift = [{"iteration": 30, "rollout": 1.3, "training": 1.1}]
    entry = job(
        "a", {"worst_case_s": 133.8, **NOISY, **switch}, {"worst_case_s": 112.8, **NOISY, **switch}, sync_s=3.1, drift=drift
    )
    problem = scenario({**entry, "iterations": 600, "slo": 1})
    run = played(problem, Solo(), dispatch)
    assert run.solo_s is not None and departures(run)["a"] == run.solo_s["a"]
    found = metrics(run)
    assert found.slo_attainment_observed == 1
    assert found.work_h == pytest.approx(600 * (133.8 + 112.8 + 3.1) / 3600)


def test_warm_and_cold_starts_by_hand() -> None:
    """Two jobs on one node pair, rollout 10 and training 5. Cold starts: 3 and 2 of a, 6 and 4 of b; warm ones 1 and 0.5."""
    switches: dict[str, list[dict[str, Any]]] = {
        "a": [{"switch": {"warm_s": 1, "cold_s": 3}}, {"switch": {"warm_s": 0.5, "cold_s": 2}}],
        "b": [{"switch": {"warm_s": 1, "cold_s": 6}}, {"switch": {"warm_s": 0.5, "cold_s": 4}}],
    }
    jobs = [job(n, {"worst_case_s": 10, **r}, {"worst_case_s": 5, **t}, iterations=3) for n, (r, t) in switches.items()]
    run = played(scenario(*jobs))
    assert starts(run) == [("a", 0), ("b", 13), ("a", 29), ("b", 40), ("a", 51), ("b", 62)]
    assert starts(run, "training") == [("a", 13), ("b", 29), ("a", 40), ("b", 51), ("a", 62), ("b", 73)]
    assert [entry.switch_s for entry in run.phases if entry.job_id == "b"] == [6, 4, 1, 0.5, 1, 0.5]
    assert departures(run) == {"a": 67.5, "b": 78.5}
    assert run.solo_s == {"a": 50, "b": 55}
    # Switching is not running: 60 s of rollout and 30 s of training in 78.5 s.
    assert metrics(run).utilization == {"rollout": pytest.approx(60 / 78.5), "training": pytest.approx(30 / 78.5)}


def test_no_warm_start_where_the_node_last_ran_the_same_job() -> None:
    switch = {"switch": {"warm_s": 1, "cold_s": 3}}
    jobs = [job(n, {"worst_case_s": 10, **switch}, 5, iterations=3) for n in "ab"]
    run = played(scenario(*jobs), Together(pins={"b": ()}, new={"b": 1}))
    assert [entry.switch_s for entry in run.phases if entry.phase == "rollout"] == [3, 3, 0, 0, 0, 0]


@given(members=draw.group_members())
@examples(60)
def test_the_steady_pace_is_the_kernels_period(members: list[draw.Member]) -> None:
    """Any pinning, any sync, any staleness, training rescaled to the pool."""
    nodes = sorted({node for member in members for node in member[3]})
    first, *rest = members
    # The first job opens the group with all the nodes, so that the others are pinned to any of them.
    listed = [(*first[:3], nodes, first[4]), *rest]
    jobs = []
    for k, (rollout, training, sync, pins, staleness) in enumerate(listed):
        block = {"worst_case_s": 2 * training, "nodes": 2 if k == 0 else 1, **({"by_nodes": {2: training}} if k else {})}
        more = {"sync_s": sync, "staleness": staleness, "iterations": 260}
        jobs.append(job(f"j{k}", {"worst_case_s": rollout, "nodes": len(pins)}, block, **more))
    places = {f"j{k}": tuple(nodes.index(node) for node in member[3]) for k, member in enumerate(listed)}
    problem = scenario(*jobs)
    run = played(problem, Together(places))
    state = State(problem.cluster, observed=True)
    for event in run.log[: 2 * len(jobs)]:
        apply(state, event)
    period_s = state.group_list()[0].period_s
    ends = [entry.end_s for entry in run.phases if entry.job_id == jobs[-1]["id"] and entry.phase == "training"]
    assert (ends[255] - ends[135]) / 120 == pytest.approx(period_s, rel=1e-9)


@st.composite
def shared_groups(draw_: st.DrawFn) -> tuple[Scenario, dict[str, tuple[int, ...]]]:
    """Jobs that join one group over time and leave it again, without sync; some rollouts span two or three of its three nodes."""
    count = draw_(st.integers(1, 6))
    jobs = [job("j0", {"worst_case_s": draw_(st.integers(1, 20)), "nodes": 3}, draw_(st.integers(1, 20)), duration_s=6000.0)]
    pins: dict[str, tuple[int, ...]] = {}
    for k in range(1, count):
        wanted = tuple(sorted(draw_(st.sets(st.integers(0, 2), min_size=1, max_size=3))))
        stay: dict[str, Any] = draw_(st.sampled_from([{"duration_s": 500.0}, {"duration_s": 1700.0}, {"iterations": 20}]))
        rollout = {"worst_case_s": draw_(st.integers(1, 20)), "nodes": len(wanted)}
        jobs.append(job(f"j{k}", rollout, draw_(st.integers(1, 20)), draw_(st.integers(0, 3000)), **stay))
        pins[f"j{k}"] = wanted
    return scenario(*jobs, max_group_size=6), pins


@given(shared_groups())
@examples(80)
def test_at_worst_cases_it_agrees_with_the_fluid_replay(drawn: tuple[Scenario, dict[str, tuple[int, ...]]]) -> None:
    """The progress of every job differs by at most about one meta-iteration per membership change of its group."""
    problem, pins = drawn
    fluid, event = replay(problem, Together(pins)), played(problem, Together(pins))
    changes = 2 * len(problem.jobs)
    longest_s = sum(entry.rollout.worst_case_s + entry.training.worst_case_s for entry in problem.jobs)
    for entry in problem.jobs:
        row = fluid.state.row(entry.id)
        done = [run.state.tables.jobs.done[run.state.row(entry.id)] for run in (fluid, event)]
        if entry.duration_s is not None:
            assert abs(done[0] - done[1]) <= 1 + changes
        assert abs(departures(fluid)[entry.id] - departures(event)[entry.id]) <= (1 + changes) * longest_s
        assert event.state.row(entry.id) == row


def test_at_worst_cases_a_long_production_like_stay_costs_the_same() -> None:
    """Ten jobs, two a group, hundreds of iterations: what entering and leaving take is below one percent."""
    jobs = [job(f"j{k}", 100 + k, 90 - k, arrival=500 * k, iterations=400) for k in range(10)]
    problem = scenario(*jobs)
    fluid, event = metrics(replay(problem, Algorithm1())), metrics(played(problem, Algorithm1()))
    assert event.cost_usd == pytest.approx(fluid.cost_usd, rel=0.01)
    assert event.utilization["rollout"] == pytest.approx(fluid.utilization["rollout"], rel=0.01)
    assert event.work_h == pytest.approx(fluid.work_h)


@pytest.mark.parametrize("dispatch", DISPATCH)
@given(data=draw.scenarios(max_jobs=8, shaped=True), noise=st.booleans())
@examples(25)
def test_any_scenario_ends_with_every_job_done_and_no_node_used_twice(dispatch: str, data: dict[str, Any], noise: bool) -> None:
    if noise:
        for entry in data["jobs"]:
            entry["rollout"].update(NOISY)
            entry["training"].update({"actual": {"mean_fraction": 0.9, "cv": 1.0, "cap": False}})
    problem = parse_scenario(data)
    run = played(problem, Algorithm1(), dispatch)
    gone = departures(run)
    for entry in problem.jobs:
        done = run.state.tables.jobs.done[run.state.row(entry.id)]
        assert done == (entry.iterations or done) >= 1
        rollouts, trainings = (
            [phase for phase in run.phases if (phase.job_id, phase.phase) == (entry.id, name)] for name in ("rollout", "training")
        )
        for own in (rollouts, trainings):
            assert [phase.iteration for phase in own] == [*range(len(own))]
        assert done <= len(trainings) <= len(rollouts) <= (entry.iterations or done + entry.staleness)
        assert all(rollout.end_s <= training.start_s for rollout, training in zip(rollouts, trainings, strict=False))
        synced = zip(trainings, rollouts[1 + entry.staleness :], strict=False)
        assert all(training.end_s + entry.sync_s <= rollout.start_s + 1e-5 for training, rollout in synced)
        ends = [phase.end_s + entry.sync_s for phase in trainings[: int(done)]]
        assert gone[entry.id] == pytest.approx(ends[-1])
        if entry.duration_s is not None:  # it left at the end of the first iteration that ended when its stay was over
            over_s = next(event.at_s for event in run.log if isinstance(event, Admitted | Moved) and event.job_id == entry.id)
            over_s += entry.duration_s
            assert ends[-1] >= over_s - 1e-5
            assert all(end <= over_s + 1e-5 for end in ends[:-1])
    by_node = sorted((phase.group, phase.pool, node, phase.start_s, phase.end_s) for phase in run.phases for node in phase.nodes)
    for a, b in itertools.pairwise(by_node):
        assert a[:3] != b[:3] or a[4] <= b[3]


def noisy_jobs(count: int = 8, **more: Any) -> list[dict[str, Any]]:
    return [
        job(f"j{k}", {"worst_case_s": 10 + k, **NOISY}, {"worst_case_s": 14 - k, **NOISY}, arrival=60 * k, iterations=40, **more)
        for k in range(count)
    ]


def as_text(run: Run) -> str:
    values = metrics(run).as_dict()
    return json.dumps([values, run.phases, [str(event) for event in run.log]])


@pytest.mark.parametrize("dispatch", DISPATCH)
def test_the_same_seed_gives_the_same_bytes(dispatch: str) -> None:
    first, second, other = (played(scenario(*noisy_jobs()), Algorithm1(), dispatch, seed) for seed in (3, 3, 4))
    assert as_text(first) == as_text(second)
    assert as_text(first) != as_text(other)


def test_two_policies_meet_the_same_luck() -> None:
    seconds = []
    for policy, dispatch in ((Algorithm1(), "round-robin"), (Solo(), "fifo"), (ColocatedJobs(), "longest-first")):
        run = played(scenario(*noisy_jobs()), policy, dispatch, seed=5)
        seconds.append({phase[:3]: phase.end_s - phase.start_s for phase in run.phases})
        assert run.solo_s is not None
        assert run.solo_s == pytest.approx({j: sum(s for k, s in seconds[0].items() if k[0] == j) for j in run.solo_s})
    for other in seconds[1:]:
        assert other == pytest.approx(seconds[0])


@pytest.mark.parametrize("dispatch", DISPATCH)
def test_nothing_depends_on_what_has_not_happened_yet(dispatch: str) -> None:
    """Two streams that differ only in the future give the same decisions and phases until they diverge."""
    changed_s = 5 * 60.0
    jobs = noisy_jobs()
    later = [*jobs[:5], *(job(f"x{k}", 3, 30, arrival=changed_s + k, iterations=9) for k in range(4))]
    runs = [played(scenario(*listed), Algorithm1(), dispatch) for listed in (jobs, later)]
    logs = [[str(event) for event in run.log if event.at_s < changed_s] for run in runs]
    assert logs[0] == logs[1]
    phases = [[phase for phase in run.phases if phase.end_s < changed_s] for run in runs]
    assert phases[0] == phases[1]
    assert len(phases[0]) > 60


@pytest.mark.parametrize("dispatch", DISPATCH)
def test_drift_that_is_still_to_come_changes_nothing_before_it(dispatch: str) -> None:
    jobs = noisy_jobs()
    drifting = [{**jobs[0], "drift": [{"iteration": 20, "rollout": 3.0}]}, *jobs[1:]]
    runs = [played(scenario(*listed), Algorithm1(), dispatch) for listed in (jobs, drifting)]
    begins_s = next(phase.start_s for phase in runs[1].phases if phase.job_id == "j0" and phase.iteration == 20)
    for what in (
        lambda run: [str(e) for e in run.log if e.at_s <= begins_s],
        lambda run: [p for p in run.phases if p.end_s <= begins_s],
    ):
        assert what(runs[0]) == what(runs[1])
    assert as_text(runs[0]) != as_text(runs[1])


def test_drift_by_hand() -> None:
    run = played(scenario(job("a", iterations=4, drift=[{"iteration": 1, "rollout": 2}, {"iteration": 3, "training": 3}])))
    assert [phase.end_s - phase.start_s for phase in run.phases] == [10, 5, 20, 5, 20, 5, 10, 15]


def test_training_takes_its_time_at_the_groups_pool() -> None:
    jobs = [job("a", 10, {"worst_case_s": 5, "nodes": 2}), job("b", 10, {"worst_case_s": 8, "by_nodes": {2: 4.5}, **NOISY})]
    run = played(scenario(*jobs), seed=9)
    shared = [phase for phase in run.phases if phase.phase == "training" and phase.job_id == "b"]
    alone = [phase for phase in played(scenario(*jobs), Solo(), seed=9).phases if phase.phase == "training" and phase.job_id == "b"]
    assert [phase.end_s - phase.start_s for phase in shared] == pytest.approx([(p.end_s - p.start_s) * 4.5 / 8 for p in alone])
    assert {phase.nodes for phase in shared} == {(0, 1)}


def test_sync_delays_the_next_rollout_and_the_departure_and_holds_no_node() -> None:
    run = played(scenario(job("a", sync_s=4, iterations=2), job("b", 2, 1, iterations=2)))
    assert starts(run) == [("a", 0), ("b", 10), ("a", 19), ("b", 29)]
    assert departures(run) == {"b": 35, "a": 38}


def test_colocated_jobs_run_both_phases_in_turn_on_training_nodes() -> None:
    own: dict[str, Any] = {"colocated": {"nodes": 2, "rollout_s": 7, "training_s": 4}}
    run = played(scenario(job("a", iterations=3, sync_s=9, **own)), ColocatedJobs())
    assert [(phase.pool, phase.nodes, phase.start_s) for phase in run.phases[:3]] == [
        ("training", (0, 1), 0),
        ("training", (0, 1), 7),
        ("training", (0, 1), 11),
    ]
    assert departures(run) == {"a": 33}
    assert metrics(run).utilization == {"rollout": None, "training": 1}


def test_a_policy_sees_the_iterations_that_were_finished_and_no_more() -> None:
    policy = Together()
    played(scenario(job("a", iterations=9), job("b", arrival=74, iterations=2), job("c", arrival=76, iterations=1)), policy)
    assert [done for at, name, done in policy.seen if name == "a"][:2] == [4, 5]


def test_a_log_replayed_gives_the_same_state() -> None:
    run = played(scenario(*noisy_jobs()), Algorithm1())
    state = State(run.scenario.cluster, observed=True)
    for event in run.log:
        apply(state, event)
    assert any(isinstance(event, Progressed) for event in run.log)
    assert state.tables.jobs.done.tolist() == run.state.tables.jobs.done.tolist()
    assert state.tables.jobs.rollout_busy_s.tolist() == run.state.tables.jobs.rollout_busy_s.tolist()


def test_a_move_by_hand() -> None:
    """Three jobs on rollout nodes of their own. When c leaves, a is moved to a pair of its own and pauses for 7 s.

    It has done two iterations and drops the third, which began at 35. The node that it leaves is paid for until the pause ends.
    """
    cold = {"worst_case_s": 10, "switch": {"cold_s": 2}}
    jobs = [job("c", 40, 1, iterations=1), job("a", cold, iterations=4), job("b", iterations=6)]
    away = Move("a", Placement(None, (), 1, 1))
    run = played(scenario(*jobs, migration_s=7), Together({"a": (), "b": ()}, {"a": 1, "b": 1}, {"c": (away,)}), "fifo")
    own = [(p.phase[0], p.iteration, p.group, p.start_s, p.end_s) for p in run.phases if p.job_id == "a"]
    assert own[:4] == [("r", 0, 0, 0, 12), ("t", 0, 0, 15, 20), ("r", 1, 0, 20, 30), ("t", 1, 0, 30, 35)]
    assert own[4:7] == [("r", 2, 0, 35, 41), ("r", 2, 1, 48, 60), ("t", 2, 1, 60, 65)]
    assert departures(run)["a"] == 80
    assert metrics(run).migrations == 1
    assert run.state.tables.jobs.done.tolist()[:3] == [1, 4, 6]
    provisioned = dict(zip(run.time_s, run.nodes["rollout"], strict=True))
    assert [provisioned[at_s] for at_s in (0, 41, 48)] == [3, 3, 2]
    assert [dict(zip(run.time_s, run.nodes["training"], strict=True))[at_s] for at_s in (0, 41, 48)] == [1, 2, 2]


def test_a_moved_job_is_a_member_at_once_and_enters_at_the_next_meta_iteration_after_its_pause() -> None:
    """At 33 a is moved to b's pair; its pause ends at 53. A job that comes at 40 runs before it, but is behind it in order."""
    jobs = [job("x", 30, 3, iterations=1), job("a", 6, 3), job("b", 6, 3, iterations=30), job("late", 6, 3, arrival=40)]

    class Policy:
        keeps_slo = False

        def decide(self, state: State, event: Event) -> Plan:
            if isinstance(event, Departed):
                return (Move("a", Placement(state.group_of("b").id, (0,))),) if event.job_id == "x" else ()
            assert isinstance(event, Arrived)
            joins = Placement(state.group_of("b").id, (0,)) if event.job.id == "late" else isolated(event.job)
            return (Place(event.job.id, joins),)

    run = played(scenario(*jobs, migration_s=20), Policy())
    assert [event.at_s for event in run.log if isinstance(event, Moved)] == [33]
    after = [(name, at_s) for name, at_s in starts(run) if at_s > 33]
    assert "".join(name[0] for name, _ in after)[:12] == "bblbalbalbal"
    assert next(at_s for name, at_s in after if name == "a") == 63


def test_a_dispatcher_knows_when_its_members_joined() -> None:
    """A network goes by what a member has left of its SLO since then."""

    class Spy(RoundRobin):
        joined: ClassVar[dict[tuple[int, str], float]] = {}

        def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
            self.joined.update({(id(group), member.job_id): member.joined_s for member in group.members})
            return super().choose(group)

    away = Move("a", Placement(None, (), 1, 1))
    jobs = [job("c", arrival=100, iterations=4), job("a", arrival=107), job("b", arrival=111.5)]
    run = replay_events(scenario(*jobs, migration_s=1), Together(moves={"c": (away,)}), Spy(), 0)
    moved_s = next(event.at_s for event in run.log if isinstance(event, Moved))
    assert sorted(Spy.joined.values()) == [100, 107, 111.5, moved_s]


def test_a_stay_that_is_over_ends_with_the_iteration() -> None:
    run = played(scenario(job("a", duration_s=31.0), job("b", arrival=100, duration_s=3.0), job("c", arrival=200, duration_s=30.0)))
    assert departures(run) == {"a": 45, "b": 115, "c": 230}


def test_jobs_that_wait_for_ever_are_an_error() -> None:
    class Never:
        keeps_slo = False

        def decide(self, state: State, event: Event) -> Plan:
            return ()

    with pytest.raises(PlanError, match="1 jobs wait for ever, the first is a"):
        played(scenario(job("a")), Never())


def test_phases_are_kept_when_asked_for() -> None:
    run = replay_events(scenario(job("a")), Solo(), make_dispatch("fifo"), seed=0)
    assert run.phases == []


def test_the_fluid_replay_has_no_observed_attainment() -> None:
    problem = scenario(job("a"))
    assert "slo_attainment_observed" not in metrics(replay(problem, Solo())).as_dict()
    keys = list(metrics(played(problem, Solo())).as_dict())
    assert keys.index("slo_attainment_observed") == keys.index("slo_attainment") + 1


def test_observed_attainment_is_against_the_same_luck() -> None:
    """Twice the worst case by drift: the planned SLO is missed, the observed one kept. A slow partner breaks the latter."""
    doubled = [{"iteration": 0, "rollout": 2, "training": 2}]
    found = metrics(played(scenario(job("a", slo=1.5, drift=doubled))))
    assert (found.slo_attainment, found.slo_attainment_observed) == (0, 1)
    halved = [{"iteration": 0, "rollout": 0.5, "training": 0.5}]
    pair = scenario(job("a", slo=1.5, drift=halved), job("b", 10, 5, slo=1.5, iterations=12))
    found = metrics(played(pair))
    assert (found.slo_attainment, found.slo_attainment_observed) == (1, 0.5)


class Halves(TailModel):
    """Half of a rollout's seconds are its tail, which takes 1.5 times as long on its quarter; beside it rollouts run at 0.8."""

    def rate(self, share: float) -> float:
        return 0.8

    def draw(self, generator: np.random.Generator, migration: Migration, count: int) -> tuple[Floats, Floats]:
        return np.full(count, 0.5), np.full(count, 1.5)


def test_long_tail_migration_by_hand() -> None:
    """Two jobs on one node pair, rollout 40 and training 10; a tail of 20 s moves in 2 s and then takes 30.

    a: 0 to 20, then its tail until 52, training until 62. b from 20 on at 0.8: 25.6 s of it at 52, when it is past its own
    threshold, and the rest at full speed until 66.4. Nobody waits for its node at 52; at 62 a does: b's tail, 4.4 s, moves.
    """
    problem = scenario(job("a", 40, 10, iterations=2), job("b", 40, 10, iterations=1))
    run = played(problem, dispatch="round-robin,migrate=0.8,share=0.25", tails=Halves())
    spans = [(p.job_id, p.phase, round(p.start_s, 3), round(p.end_s, 3), p.share) for p in run.phases if p.start_s < 70]
    assert sorted(spans, key=lambda span: (span[2], span[0], span[4])) == [
        ("a", "rollout", 0, 20, 1),
        ("a", "tail", 20, 52, 0.25),
        ("b", "rollout", 20, 52, 0.75),
        ("a", "training", 52, 62, 1),
        ("b", "rollout", 52, 62, 1),
        ("a", "rollout", 62, 70.6, 0.75),
        ("b", "tail", 62, 70.6, 0.25),
    ]
    node_s = 20 + 32 + 10 + 8.6 + (departures(run)["a"] - 10 - 70.6)
    assert metrics(run).utilization["rollout"] == pytest.approx(node_s / departures(run)["a"])


def held(run: Run) -> float:
    """The most that the shares of a node add up to."""
    changes: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for phase in run.phases:
        for node in phase.nodes:
            own = changes.setdefault((phase.group, phase.pool, node), [])
            if phase.end_s > phase.start_s:
                own += [(round(phase.end_s, 5), -phase.share), (round(phase.start_s, 5), phase.share)]
    return max(max(itertools.accumulate(change for _, change in sorted(own))) for own in changes.values() if own)


@pytest.mark.parametrize("dispatch", ["round-robin,migrate=0.8", "fifo,migrate=0.8", "longest-first,migrate=0.5"])
@given(data=draw.scenarios(max_jobs=6, shaped=True), seed=st.integers(0, 3))
@examples(25)
def test_with_migration_no_node_does_more_than_its_whole(dispatch: str, data: dict[str, Any], seed: int) -> None:
    for entry in data["jobs"]:
        entry["rollout"] |= NOISY
        entry["training"] |= NOISY
    problem = parse_scenario(data)
    run = replay_events(problem, Algorithm1(), make_dispatch(dispatch), seed, watch=Watch(check=True, keep_phases=True))
    assert run.state.departed == len(problem.jobs)
    assert held(run) <= 1 + 1e-9
    alike = replay_events(problem, Algorithm1(), make_dispatch(dispatch), seed, Watch(keep_phases=True))
    assert alike.phases == run.phases


@pytest.mark.parametrize("name", ["round-robin", "fifo"])
def test_where_nobody_shares_a_rollout_node_migration_changes_nothing(name: str) -> None:
    jobs = [job(n, {"worst_case_s": r, **NOISY}, {"worst_case_s": 5, **NOISY}) for n, r in (("a", 10), ("b", 14))]
    pins: dict[str, tuple[int, ...]] = {"b": ()}
    runs = [played(scenario(*jobs), Together(pins, {"b": 1}), dispatch) for dispatch in (name, f"{name},migrate=0.8")]
    assert departures(runs[0]) == pytest.approx(departures(runs[1]), rel=1e-12)
    assert runs[0].solo_s == runs[1].solo_s


def test_a_replay_has_only_so_many_phases_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []

    def begun(problem: Scenario, most: int | None, keep_phases: bool = False) -> Run:
        watch = Watch(most_phases=most, report=lambda phases, departed: told.append((phases, departed)), keep_phases=keep_phases)
        return replay_events(problem, Solo(), make_dispatch("fifo"), 0, watch)

    by_work, by_time = scenario(job("a", iterations=50), job("b")), scenario(job("a", rollout=1e-3, training=1e-3, duration_s=10))
    began = "event replay: more than 200 phases have begun after 0.0 h, and 200 at most are replayed; --max-phases allows more"
    for problem, most, said in (
        (by_work, 119, "event replay: the jobs have 120 phases, and 119 at most are replayed; --max-phases allows more"),
        (by_time, 200, began),
    ):
        with pytest.raises(InputError) as caught:
            begun(problem, most)
        assert str(caught.value) == said
    assert begun(by_work, 200).log == begun(by_work, None).log and not told
    monkeypatch.setattr("rollmux_env.replay.event._TOLD", 40)
    assert begun(by_work, None).log == begun(by_work, 200).log
    assert [departed for _, departed in told] == [0, 1, 1] * 2 and told[0][0] >= 40 and told[1][0] >= told[0][0] + 40
    monkeypatch.setattr("rollmux_env.replay.event.MAX_KEPT_PHASES", 100)
    with pytest.raises(InputError, match="100 at most"):
        begun(by_work, None, keep_phases=True)
