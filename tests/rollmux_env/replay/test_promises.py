"""What is promised where switches are planned is what an event replay observes at worst-case durations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch.rules import RoundRobin
from policies.registry import make_policy
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import REASONS, candidates
from rollmux_env.cluster.events import Admitted, Arrived, Placement, isolated
from rollmux_env.cluster.state import State
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.oracle import draw
from tests.oracle.draw import examples
from tests.rollmux_env.replay.test_event import Together, job, scenario

SWITCH = {"rollout": {"warm_s": 1, "cold_s": 3}, "training": {"warm_s": 2, "cold_s": 2}}


def with_switches(entry: dict[str, Any], **switches: dict[str, int]) -> dict[str, Any]:
    """A job whose phases have switches, by default those above."""
    for phase, switch in (switches or SWITCH).items():
        entry[phase]["switch"] = switch
    return entry


def placed(problem: Scenario, *pins: tuple[tuple[int, ...], int]) -> State:
    """The first job has a group of its own, the others join it: (its nodes, new ones) each."""
    state = State(problem.cluster, switches=True)
    for k, entry in enumerate(problem.jobs):
        apply(state, Arrived(0, entry))
        place = isolated(entry) if k == 0 else Placement(0, *pins[k - 1])
        apply(state, Admitted(0, entry.id, place))
    return state


def test_a_phase_on_a_shared_node_costs_its_warm_start() -> None:
    problem = scenario(*(with_switches(job(name)) for name in "ab"))
    alone = State(problem.cluster, switches=True)
    apply(alone, Arrived(0, problem.jobs[0]))
    apply(alone, Admitted(0, "a", isolated(problem.jobs[0])))
    assert alone.group_list()[0].period_s == 15
    assert placed(problem, ((0,), 0)).group_list()[0].period_s == 2 * (10 + 1)
    assert placed(problem, ((), 1)).group_list()[0].period_s == 10 + 5 + 2  # its rollout node is its own, the training node is not
    assert State(problem.cluster).limits.pools.tobytes() == alone.limits.pools.tobytes()


def test_the_candidates_know_it() -> None:
    """A rollout that fits exactly without switches, and not with them."""
    problem = scenario(with_switches(job("a", 10, 10, slo=1.2)), with_switches(job("b", 5, 10, slo=8)))
    for switches, fits in ((False, True), (True, False)):
        state = State(problem.cluster, switches=switches)
        for entry in problem.jobs:
            apply(state, Arrived(0, entry))
        apply(state, Admitted(0, "a", isolated(problem.jobs[0])))
        table = candidates(state, "b")
        assert REASONS[table.reason[0]] == ("feasible" if fits else REASONS[6])


@given(members=draw.group_members(), starts=st.lists(st.integers(0, 9), min_size=12, max_size=12))
@examples(60)
def test_the_steady_pace_is_the_planned_period(members: list[draw.Member], starts: list[int]) -> None:
    nodes = sorted({node for member in members for node in member[3]})
    first, *rest = members
    jobs, pins = [], []
    for k, (rollout, training, sync, own, staleness) in enumerate([(*first[:3], nodes, first[4]), *rest]):
        more = {"sync_s": sync, "staleness": staleness, "iterations": 260}
        entry = job(f"j{k}", {"worst_case_s": rollout, "nodes": len(own)}, {"worst_case_s": training}, **more)
        warm = {"rollout": {"warm_s": starts[2 * k], "cold_s": 30}, "training": {"warm_s": starts[2 * k + 1], "cold_s": 20}}
        jobs.append(with_switches(entry, **warm))
        pins.append((tuple(nodes.index(node) for node in own), 0))
    problem = scenario(*jobs, max_group_size=6)
    period_s = placed(problem, *pins[1:]).group_list()[0].period_s
    together = Together({f"j{k}": pin for k, (pin, _) in enumerate(pins)})
    run = replay_events(problem, together, RoundRobin(), 0, Watch(keep_phases=True))
    ends = [entry.end_s for entry in run.phases if entry.job_id == jobs[-1]["id"] and entry.phase == "training"]
    assert (ends[255] - ends[135]) / 120 == pytest.approx(period_s, rel=1e-9)


@st.composite
def streams(draw_: st.DrawFn) -> Scenario:
    """Jobs that come and go, of few iterations or short stays, so that every join counts."""
    seconds = st.integers(1, 40)
    jobs = []
    for k in range(draw_(st.integers(2, 9))):
        stay: dict[str, Any] = draw_(
            st.one_of(
                st.fixed_dictionaries({"iterations": st.integers(1, 60)}),
                st.fixed_dictionaries({"duration_s": st.integers(50, 3000)}),
            )
        )
        nodes = draw_(st.integers(1, 2))
        slo, sync_s, arrival_s = draw_(st.floats(1, 3)), draw_(st.sampled_from([0, 0, 5])), draw_(st.integers(0, 2000))
        entry = job(
            f"j{k}", {"worst_case_s": draw_(seconds), "nodes": nodes}, draw_(seconds), arrival_s, slo=slo, sync_s=sync_s, **stay
        )
        entry["staleness"] = draw_(st.sampled_from([0, 0, 1, 3]))
        warm = {phase: {"warm_s": draw_(st.integers(0, 4)), "cold_s": draw_(st.integers(0, 60))} for phase in SWITCH}
        if draw_(st.booleans()):
            cold = {"warm_s": draw_(st.integers(0, 4)), "cold_s": draw_(st.integers(0, 120))}
            entry["shapes"] = [{"rollout": {"nodes": 1, "worst_case_s": draw_(seconds) + 0.125, "switch": cold}}]
        jobs.append(with_switches(entry, **warm))
    return scenario(*jobs, migration_s=30)


def observed(problem: Scenario, policy: str) -> Run:
    chosen: Any = make_policy(policy)
    return replay_events(problem, chosen, RoundRobin(), 0, Watch(check=True))


@given(streams(), st.sampled_from(["rollmux", "rollmux,prune=false", "consolidate", "regroup"]))
@examples(150)
def test_every_promise_is_kept(problem: Scenario, policy: str) -> None:
    assert metrics(observed(problem, f"{policy},switches=true")).slo_attainment_observed == 1


def test_a_group_of_its_own_in_another_shape_is_entered_as_any_other() -> None:
    """Alone the one fills its pipeline more slowly there, the other starts cold for longer: without planned switches, both do."""
    slow = job("a", {"worst_case_s": 25, "nodes": 3}, 59, slo=1, iterations=60, staleness=1)
    slow["shapes"] = [{"rollout": {"nodes": 1, "worst_case_s": 44}}]
    cold = with_switches(job("b", {"worst_case_s": 20, "nodes": 3}, 20, slo=1.5, iterations=20))
    cold["shapes"] = [{"rollout": {"nodes": 1, "worst_case_s": 40, "switch": {"cold_s": 100}}}]
    for entry in (slow, cold):
        runs = [observed(scenario(entry), policy) for policy in ("rollmux", "rollmux,switches=true")]
        assert [metrics(run).slo_attainment_observed for run in runs] == [0, 1]


def test_promises_of_a_production_like_stream_are_kept() -> None:
    """Without planned switches the same stream breaks some."""
    problem = make_workload("production", WorkloadOptions(seed=0, jobs=100, switches=True))
    kept = [metrics(observed(problem, policy)).slo_attainment_observed for policy in ("rollmux", "rollmux,switches=true")]
    assert kept[0] != 1 and kept[1] == 1
