"""What a replay leaves behind, and what all replays share: jobs that arrive, and the scheduler at an instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rollmux_env.cluster.events import Event
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.replay.failures import FailureLog
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.planner import INSTANT_S
from rollmux_env.scheduler.quotas import Quotas, held_words


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
        time_s: (T,) from when on. nodes: by name of the pool, (T,) nodes provisioned from then on, after all events of an instant.
        decision_s: seconds of computing of each call of the policy for a waiting job.
        solo_s: event replays: seconds that each job would have taken alone, with the same sampled durations; None of others.
        phases: event replays that were asked to keep them: all phases in order of their end.
        failures: of replays in which something dies: what has.
        penalised_usd_per_hour: fluid replays of a policy that may break SLOs: (T,) $/h from then on, with
            `rollmux_env.kernel.pools.penalty_usd`.
    """

    scenario: Scenario
    state: State
    log: list[Event] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    nodes: dict[str, list[int]] = field(default_factory=dict)
    decision_s: list[float] = field(default_factory=list)
    solo_s: dict[str, float] | None = None
    phases: list[PhaseRun] = field(default_factory=list)
    failures: FailureLog | None = None
    penalised_usd_per_hour: list[float] = field(default_factory=list)


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


def placements(run: Run, scheduler: Scheduler, now_s: float, arrivals: Arrivals) -> Iterator[Command]:
    """Let pauses end and jobs arrive, and decide about placements: what the commands are, and then what is to be recorded.

    Args:
        arrivals: of which all are taken that arrive within `INSTANT_S`.
    """
    state, until_s = run.state, now_s + INSTANT_S
    for job_id in state.pauses.ending(until_s):
        scheduler.jobs.resumed(job_id)
    while arrivals.next_s <= until_s:
        scheduler.jobs.arrived(arrivals.take())
    yield from scheduler.placements(now_s)
    run.log += scheduler.planner.take_events()
    run.time_s.append(now_s)
    if not run.nodes:
        run.nodes = {name: [] for name in state.cluster.pools}
    for counts, count in zip(run.nodes.values(), map(sum, state.nodes.tolist()), strict=True):
        counts.append(count)


def waits_for_ever(state: State) -> str:
    """What to say when jobs wait and nothing will happen any more."""
    first = state.job(state.waiting[0])
    why = f": {held_words(state, first.user)}" if Quotas(state).bars(first) else ""
    return f"{len(state.waiting)} jobs wait for ever, the first is {first.id}{why}"
