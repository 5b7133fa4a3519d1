"""The record of a replay, and the parts that all replays share: arrivals, and the scheduler's decisions at an instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import plans_switches
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.replay.failures import FailureLog
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.order import half_life_h
from rollmux_env.scheduler.quotas import Quotas, held_words
from rollmux_env.scheduler.ticks import INSTANT_S


class PhaseRun(NamedTuple):
    """A phase that ran, completely or until a move or a death cut it short; the iteration is then run again.

    A rollout whose tail migrated, or that ran beside a migrated tail, has one entry for each span of time in which it held the same
    share of the same nodes.

    Attributes:
        job_id: Identifier of the job.
        phase: `rollout`, `training`, or `tail` for the migrated rest of a rollout.
        iteration: Number of the job's iteration, from 0.
        group: Identifier of the job's group.
        pool: Side of the nodes that it held, `rollout` or `training` (also for co-located rollouts).
        nodes: Numbers of the nodes within the group.
        start_s: Time at which it got the nodes, in seconds.
        end_s: Time at which it released them, in seconds.
        switch_s: Length of the switch at its beginning, in seconds.
        share: Share of each node that it held.
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
    """The record of a replay.

    Attributes:
        scenario: Scenario that was replayed.
        state: State after the last event.
        log: All events in order.
        time_s: Times at which placements may have changed, in seconds, shape (T,).
        nodes: Number of nodes provisioned from each time on by pool, after all events of the instant, shape (T,) each.
        waiting: Number of jobs in the queue from each time on, after all events of the instant, shape (T,).
        decision_s: Seconds of computation of each call of the policy for a waiting job.
        solo_s: Seconds that each job would have taken alone with the same sampled durations; None except in event replays.
        phases: All phases in order of their end, in event replays that keep them.
        failures: Failures of a replay with failures, else None.
        penalised_usd_per_hour: Price in $/h from each time on, with `rollmux_env.kernel.pools.penalty_usd`, shape (T,), in fluid
            replays of a policy that may break SLOs.
    """

    scenario: Scenario
    state: State
    log: list[Event] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    nodes: dict[str, list[int]] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    solo_s: dict[str, float] | None = None
    phases: list[PhaseRun] = field(default_factory=list)
    failures: FailureLog | None = None
    penalised_usd_per_hour: list[float] = field(default_factory=list)


def in_order_of_arrival(scenario: Scenario) -> list[Job]:
    """Return the scenario's jobs by `arrival_s`; jobs that arrive together keep the file's order."""
    return sorted(scenario.jobs, key=lambda job: job.arrival_s)


def initial_state(cluster: Cluster, policy: object, observed: bool = False) -> State:
    """Return the empty state that a policy asks for."""
    return State(cluster, observed, plans_switches(policy), half_life_h(policy))


class Arrivals:
    """The jobs of a scenario, taken one by one in order of arrival.

    Attributes:
        taken: Number of jobs taken so far.
        next_s: Time at which the next job arrives in seconds, or infinity if all have been taken.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._jobs = in_order_of_arrival(scenario)
        self.taken = 0
        self.next_s = self._jobs[0].arrival_s

    def next_job(self) -> Job:
        """Return the next job."""
        job = self._jobs[self.taken]
        self.taken += 1
        self.next_s = self._jobs[self.taken].arrival_s if self.taken < len(self._jobs) else float("inf")
        return job


def placements(run: Run, scheduler: Scheduler, now_s: float, arrivals: Arrivals) -> Iterator[Command]:
    """Handle pauses that end and jobs that arrive, yield the commands of the placement decisions, and record the result.

    Args:
        run: Record of the replay.
        scheduler: Scheduler of the replay.
        now_s: Current time, in seconds.
        arrivals: Arrivals, of which all within `INSTANT_S` are taken.
    """
    yield from begin_instant(scheduler, now_s, arrivals)
    end_instant(run, scheduler, now_s)


def begin_instant(scheduler: Scheduler, now_s: float, arrivals: Arrivals) -> Iterator[Command]:
    """Handle pauses that end and jobs that arrive, and yield the commands of the placement decisions. Arguments: `placements`."""
    until_s = now_s + INSTANT_S
    for job_id in scheduler.state.pauses.ending(until_s):
        scheduler.jobs.resumed(job_id)
    while arrivals.next_s <= until_s:
        scheduler.jobs.arrived(arrivals.next_job())
    yield from scheduler.placements(now_s)


def end_instant(run: Run, scheduler: Scheduler, now_s: float) -> None:
    """Record the events of an instant, and the nodes and waiting jobs after them. Arguments: `placements`."""
    state = run.state
    run.log += scheduler.planner.take_events()
    run.time_s.append(now_s)
    run.waiting.append(len(state.waiting))
    if not run.nodes:
        run.nodes = {name: [] for name in state.cluster.pools}
    for counts, count in zip(run.nodes.values(), map(sum, state.nodes.tolist()), strict=True):
        counts.append(count)


def waits_for_ever(state: State, job_id: str = "") -> str:
    """Return the message that jobs wait and no further event will happen.

    Args:
        state: State of the cluster.
        job_id: Identifier of the first job that does, by default the first one of the queue.
    """
    first = state.job(job_id or state.waiting[0])
    why = f": {held_words(state, first)}" if Quotas(state).bars(first) else ""
    return f"{len(state.waiting)} jobs wait for ever, the first is {first.id}{why}"
