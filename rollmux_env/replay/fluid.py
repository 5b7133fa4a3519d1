"""The fluid replay: between events each member of a group progresses at 1/period iterations per second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from rollmux_env.cluster.events import Arrived, Departed, Event, Resumed
from rollmux_env.cluster.plan import Plan, Policy, carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import PlanError
from rollmux_env.replay.checks import check_state
from rollmux_env.scenario import Job, Scenario

INSTANT_S = 1e-6  # times this close are one instant


@dataclass
class Run:
    """What a replay leaves behind.

    Attributes:
        scenario: what was replayed.
        state: the state after the last event.
        log: all events in order.
        time_s, rollout_nodes, training_nodes: (T,) nodes provisioned from each time on, after all events of an instant.
        decision_s: seconds of computing of each call of the policy for a waiting job.
    """

    scenario: Scenario
    state: State
    log: list[Event] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    rollout_nodes: list[int] = field(default_factory=list)
    training_nodes: list[int] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)


def in_order_of_arrival(scenario: Scenario) -> list[Job]:
    """The scenario's jobs by `arrival_s`; of jobs that arrive together, in the file's order."""
    return sorted(scenario.jobs, key=lambda job: job.arrival_s)


def replay(scenario: Scenario, policy: Policy, check: bool = False, progress: Callable[[int], None] | None = None) -> Run:
    """Replay a scenario under a placement policy.

    Args:
        check: assert the invariants of `rollmux_env.replay.checks` after every instant.
        progress: called with the number of jobs that have left.

    Raises:
        PlanError: the policy broke an invariant, or left jobs waiting that nothing can wake.
    """
    run = Run(scenario, State(scenario.cluster))
    state = run.state
    arrivals = in_order_of_arrival(scenario)
    arrived = 0
    while state.departed < len(arrivals):
        next_arrival_s = arrivals[arrived].arrival_s if arrived < len(arrivals) else np.inf
        now_s = min(next_arrival_s, state.next_departure_s(), state.next_resume_s())
        if not np.isfinite(now_s):
            raise PlanError(f"{len(state.waiting)} jobs wait for ever, the first is {state.waiting[0]}")
        now_s = max(now_s, state.now_s)
        until_s = now_s + INSTANT_S
        ended: Event | None = None
        for job_id in state.resuming(until_s):
            _note(run, ended := Resumed(now_s, job_id))
        for job_id in state.departing(until_s):
            _note(run, ended := Departed(now_s, job_id))
        if isinstance(ended, Departed):
            run.log += carry_out(state, policy.decide(state, ended), policy.keeps_slo)
        if ended:
            while state.waiting and _admit(run, policy, Arrived(now_s, state.job(state.waiting[0]))):
                pass
        while arrived < len(arrivals) and arrivals[arrived].arrival_s <= until_s:
            event = Arrived(now_s, arrivals[arrived])
            arrived += 1
            _note(run, event)
            if len(state.waiting) == 1:
                _admit(run, policy, event)
        run.time_s.append(now_s)
        run.rollout_nodes.append(state.rollout_nodes)
        run.training_nodes.append(state.training_nodes)
        if check:
            check_state(state, arrived, policy.keeps_slo)
        if progress is not None:
            progress(state.departed)
    return run


def _note(run: Run, event: Event) -> None:
    apply(run.state, event)
    run.log.append(event)


def _admit(run: Run, policy: Policy, event: Arrived) -> bool:
    """Ask the policy about a waiting job; whether it has a place now."""
    began = perf_counter()
    plan: Plan = policy.decide(run.state, event)
    run.decision_s.append(perf_counter() - began)
    run.log += carry_out(run.state, plan, policy.keeps_slo)
    return run.state.is_running(event.job.id)
