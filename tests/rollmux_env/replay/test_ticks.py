"""Policies that ask to be woken at regular times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from rollmux_env.bench.streams import sampled, workload
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement, Resumed, Ticked
from rollmux_env.cluster.plan import Move, Plan, Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.rollmux_env.cluster.twin import CLUSTER, make_job


def scenario(*jobs: dict[str, Any], **cluster: Any) -> Scenario:
    return parse_scenario({"version": 1, "cluster": {**CLUSTER, **cluster}, "jobs": list(jobs)})


def by_events(problem: Scenario, policy: Policy) -> Run:
    return replay_events(problem, policy, make_dispatch("round-robin"), 0, watch=Watch(check=True))


def by_flow(problem: Scenario, policy: Policy) -> Run:
    return replay(problem, policy, check=True)


Play = Callable[[Scenario, Policy], Run]
REPLAYS = pytest.mark.parametrize("play", [by_flow, by_events])


@dataclass
class Woken(Algorithm1):
    """Algorithm 1, woken; makes a move at the first tick from `after_s` on."""

    wakes_every_s: float | None
    after_s: float = float("inf")
    move: Move | None = None
    asked_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Ticked):
            return super().decide(state, event)
        assert event.at_s == state.now_s
        self.asked_s.append(event.at_s)
        if event.at_s < self.after_s:
            return ()
        self.after_s = float("inf")
        assert self.move is not None
        return (self.move,)


def ticks(run: Run) -> list[float]:
    return [event.at_s for event in run.log if isinstance(event, Ticked)]


@REPLAYS
def test_ticks_are_counted_from_the_first_arrival_while_jobs_run(play: Play) -> None:
    """a runs from 50 to 250, b from 1000 to 1200; the policy is woken every 60 s after 50."""
    policy = Woken(60)
    run = play(scenario(make_job("a", arrival_s=50), make_job("b", arrival_s=1000)), policy)
    assert ticks(run) == policy.asked_s == [110, 170, 230, 1010, 1070, 1130, 1190]


@REPLAYS
def test_a_tick_comes_after_departures_and_before_arrivals_of_its_instant(play: Play) -> None:
    """a is done at 200, when b arrives: there is nobody left to wake for, but the tick was due."""
    jobs = [make_job("a"), make_job("b", arrival_s=200, iterations=2), make_job("c", iterations=50, slo=1)]
    kinds = [type(event) for event in play(scenario(*jobs), Woken(200)).log if event.at_s == 200]
    assert [kind for kind in kinds if kind in (Departed, Ticked, Arrived)] == [Departed, Ticked, Arrived]


@REPLAYS
def test_ticks_change_nothing_of_a_policy_that_does_nothing_at_them(play: Play) -> None:
    problem = workload("production", 3, jobs=30)
    plain, woken, asked_nothing = (play(problem, policy) for policy in (Algorithm1(), Woken(1800), Woken(None)))
    assert len(ticks(woken)) > 50
    assert ticks(plain) == ticks(asked_nothing) == []
    assert plain.log == asked_nothing.log
    placements = [[e for e in run.log if isinstance(e, Admitted | Moved)] for run in (plain, woken)]
    assert [(e.job_id, e.placement) for e in placements[0]] == [(e.job_id, e.placement) for e in placements[1]]
    assert [e.at_s for e in placements[0]] == pytest.approx([e.at_s for e in placements[1]])


@REPLAYS
def test_a_move_at_a_tick(play: Play) -> None:
    jobs = [make_job("a", slo=4, iterations=200), make_job("b", slo=4, iterations=200)]
    policy = Woken(1000, 1000, Move("b", Placement(None, (), 1, 1)))
    run = play(scenario(*jobs), policy)
    assert [(type(e), e.at_s) for e in run.log if isinstance(e, Moved | Resumed)] == [(Moved, 1000), (Resumed, 1300)]


def test_who_waits_is_asked_again_after_the_moves_of_a_tick() -> None:
    """Two nodes a pool, c waits for one. At the tick b joins a; its nodes are free when the pause ends."""
    limits = {pool: {**CLUSTER[pool], "max_nodes": 2} for pool in ("rollout", "training")}

    class Apart(Woken):
        def decide(self, state: State, event: Event) -> Plan:
            return Solo().decide(state, event) if isinstance(event, Arrived) else super().decide(state, event)

    jobs = [make_job(name, slo=4, iterations=500, arrival_s=at) for name, at in (("a", 0), ("b", 0), ("c", 100))]
    run = by_flow(scenario(*jobs, **limits), Apart(1000, 1000, Move("b", Placement(0, (0,), 0))))
    admitted = {e.job_id: e.at_s for e in run.log if isinstance(e, Admitted)}
    assert admitted["c"] == 1300


@pytest.mark.parametrize("every_s", [0, -5, float("nan"), float("inf"), 1e-9])
def test_times_that_make_no_sense_are_refused(every_s: float) -> None:
    with pytest.raises(InputError, match="wakes_every_s"):
        by_flow(scenario(make_job("a")), Woken(every_s))


def test_a_log_with_ticks_replayed_gives_the_same_state() -> None:
    run = by_events(sampled("production", 1, jobs=10), Woken(600))
    state = State(run.scenario.cluster, observed=True)
    for event in run.log:
        apply(state, event)
    assert (state.now_s, state.departed) == (run.state.now_s, run.state.departed)
    assert state.tables.jobs.done.tolist() == run.state.tables.jobs.done.tolist()
