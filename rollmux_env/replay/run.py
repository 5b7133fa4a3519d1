"""What a replay leaves behind, and the part that all replays share: what happens to placements at one instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from time import perf_counter
from typing import NamedTuple

from rollmux_env.cluster.events import Arrived, Departed, Event, Resumed, Ticked
from rollmux_env.cluster.plan import Plan, Policy, carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InputError
from rollmux_env.scenario import Job, Scenario

INSTANT_S = 1e-6  # times this close are one instant


class PhaseRun(NamedTuple):
    """One phase that ran, or began to: a move cuts the job's phase short, and the iteration is then run again.

    Of a rollout whose tail was migrated, and of one that ran beside such a tail, there is one of these for every span of time in
    which it held the same share of the same nodes.

    Attributes:
        job_id: whose. phase: `rollout`, `training`, or `tail` (the rest of a rollout, migrated).
        iteration: of the job, from 0.
        group: id of its group. pool: whose nodes it held: `rollout`, or `training` (co-located rollouts too).
        nodes: their numbers in the group.
        start_s: when it got them; end_s: when it gave them back; switch_s: how long, at first, it only switched.
        share: of each of these nodes that it held.
    """

    job_id: str
    phase: str
    iteration: int
    group: int
    pool: str
    nodes: tuple[int, ...]
    start_s: float
    end_s: float
    switch_s: float
    share: float = 1.0


@dataclass
class Run:
    """What a replay leaves behind.

    Attributes:
        scenario: what was replayed.
        state: the state after the last event.
        log: all events in order.
        time_s, rollout_nodes, training_nodes: (T,) nodes provisioned from each time on, after all events of an instant.
        decision_s: seconds of computing of each call of the policy for a waiting job.
        solo_s: event replays: seconds that each job would have taken alone, with the same sampled durations; None of others.
        phases: event replays that were asked to keep them: all phases in order of their end.
    """

    scenario: Scenario
    state: State
    log: list[Event] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    rollout_nodes: list[int] = field(default_factory=list)
    training_nodes: list[int] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    solo_s: dict[str, float] | None = None
    phases: list[PhaseRun] = field(default_factory=list)


def in_order_of_arrival(scenario: Scenario) -> list[Job]:
    """The scenario's jobs by `arrival_s`; of jobs that arrive together, in the file's order."""
    return sorted(scenario.jobs, key=lambda job: job.arrival_s)


class Arrivals:
    """The jobs of a scenario, to be taken one by one in order of arrival.

    Attributes:
        taken: how many have been.
        next_s: when the next one arrives; infinite when all have been taken.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._jobs = in_order_of_arrival(scenario)
        self.taken = 0
        self.next_s = self._jobs[0].arrival_s

    def take(self) -> Job:
        """The next job."""
        job = self._jobs[self.taken]
        self.taken += 1
        self.next_s = self._jobs[self.taken].arrival_s if self.taken < len(self._jobs) else float("inf")
        return job


class Ticks:
    """When a policy that asks for it is woken: at whole multiples of its `wakes_every_s` after the first arrival, while jobs run.

    Attributes:
        next_s: the next time; infinite where no job runs, or the policy does not ask.
    """

    def __init__(self, policy: Policy, first_s: float) -> None:
        every_s = getattr(policy, "wakes_every_s", None)
        if every_s is not None and not INSTANT_S < every_s < float("inf"):
            raise InputError(f"wakes_every_s: must be a number of seconds above {INSTANT_S:g}, not {every_s}")
        self._every_s: float | None = every_s
        self._first_s = first_s
        self.next_s = float("inf")

    def after(self, now_s: float, running: bool) -> None:
        """Find the first tick after an instant."""
        self.next_s = float("inf")
        if running and self._every_s is not None:
            passed = floor((now_s + INSTANT_S - self._first_s) / self._every_s)
            self.next_s = self._first_s + (passed + 1) * self._every_s


def instant(run: Run, policy: Policy, now_s: float, departing: Sequence[str], arrivals: Arrivals, ticks: Ticks) -> None:
    """All that happens to placements at one time, in every replay: pauses that end, departures, a tick, the queue, arrivals.

    Args:
        departing: ids of the jobs that leave now.
        arrivals: of which all are taken that arrive within `INSTANT_S`.
        ticks: moved on to the next one.
    """
    state = run.state
    until_s = now_s + INSTANT_S
    ended: Event | None = None
    for job_id in state.resuming(until_s):
        note(run, ended := Resumed(now_s, job_id))
    for job_id in departing:
        note(run, ended := Departed(now_s, job_id))
    if isinstance(ended, Departed):
        run.log += carry_out(state, policy.decide(state, ended), policy.keeps_slo)
    if ticks.next_s <= until_s and state.order.size:
        note(run, ended := Ticked(now_s))
        run.log += carry_out(state, policy.decide(state, ended), policy.keeps_slo)
    if ended:
        while state.waiting and _admit(run, policy, Arrived(now_s, state.job(state.waiting[0]))):
            pass
    while arrivals.next_s <= until_s:
        event = Arrived(now_s, arrivals.take())
        note(run, event)
        if len(state.waiting) == 1:
            _admit(run, policy, event)
    ticks.after(now_s, state.order.size > 0)
    run.time_s.append(now_s)
    run.rollout_nodes.append(state.rollout_nodes)
    run.training_nodes.append(state.training_nodes)


def waits_for_ever(state: State) -> str:
    """What to say when jobs wait and nothing will happen any more."""
    return f"{len(state.waiting)} jobs wait for ever, the first is {state.waiting[0]}"


def note(run: Run, event: Event) -> None:
    """Apply an event and keep it."""
    apply(run.state, event)
    run.log.append(event)


def _admit(run: Run, policy: Policy, event: Arrived) -> bool:
    """Ask the policy about a waiting job; whether it has a place now."""
    began = perf_counter()
    plan: Plan = policy.decide(run.state, event)
    run.decision_s.append(perf_counter() - began)
    run.log += carry_out(run.state, plan, policy.keeps_slo)
    return run.state.is_running(event.job.id)
