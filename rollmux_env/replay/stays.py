"""Times of arrivals, admissions and departures in an event log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, OverBudget, Parked, Withdrawn
from rollmux_env.errors import InputError
from rollmux_env.replay.completion import Times
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.ticks import INSTANT_S

STRATEGIES = ("direct_packing", "rollout_scaling", "isolated")


@dataclass
class StayTimes:
    """Times and kinds of the admissions and departures of a replay.

    Attributes:
        arrived_s: Time of each job's first arrival, in seconds.
        admitted_s: Time of each job's first admission, in seconds.
        departed_s: Time of each job's last departure from its place or from the queue, in seconds.
        admissions: Number of admissions by strategy.
        moves: Number of moves of each job that moved while it ran.
        groups: Number of the group that each job was last in.
        over_budget: Identifiers of the jobs that departed because their budget was exhausted.
        parked_s: Time for which each parked job waited for another place, in seconds.
        parks: Number of times that each parked job was parked.
        parked_since_s: Time since which each job that is parked now has had no place, in seconds.
        gone_s: Time between departures of each job and its next places, in seconds.
        gone_since_s: Time since which each job that has departed has had no place, in seconds.
    """

    arrived_s: dict[str, float] = field(default_factory=dict)
    admitted_s: dict[str, float] = field(default_factory=dict)
    departed_s: dict[str, float] = field(default_factory=dict)
    admissions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STRATEGIES, 0))
    moves: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    over_budget: list[str] = field(default_factory=list)
    parked_s: dict[str, float] = field(default_factory=dict)
    parks: dict[str, int] = field(default_factory=dict)
    parked_since_s: dict[str, float] = field(default_factory=dict)
    gone_s: dict[str, float] = field(default_factory=dict)
    gone_since_s: dict[str, float] = field(default_factory=dict)
    _new_group: Iterator[int] = field(default_factory=count)  # groups are numbered in the order in which they begin

    def follow(self, event: object) -> None:
        """Take an event; other facts change nothing."""
        if isinstance(event, Admitted | Moved):
            joined = event.placement.group
            self.groups[event.job_id] = next(self._new_group) if joined is None else joined
        match event:
            case Arrived():
                late = event.at_s > event.job.arrival_s + INSTANT_S  # the scheduler was away
                self.arrived_s.setdefault(event.job.id, event.job.arrival_s if late else event.at_s)
            case Admitted(at_s=at_s, job_id=job_id):
                self.admitted_s.setdefault(job_id, at_s)
                self.admissions[event.placement.strategy] += 1
                for total_s, since_s in ((self.parked_s, self.parked_since_s), (self.gone_s, self.gone_since_s)):
                    if job_id in since_s:
                        total_s[job_id] = total_s.get(job_id, 0.0) + at_s - since_s.pop(job_id)
            case Parked(at_s=at_s, job_id=job_id):
                self.parked_since_s[job_id] = at_s
                self.parks[job_id] = self.parks.get(job_id, 0) + 1
            case Departed(at_s=at_s, job_id=job_id):
                self.departed_s[job_id] = self.gone_since_s[job_id] = at_s
                if isinstance(event, OverBudget):
                    self.over_budget.append(job_id)
            case Withdrawn(at_s=at_s, job_id=job_id):
                self.departed_s[job_id] = at_s
            case Moved(job_id=job_id):
                self.moves[job_id] = self.moves.get(job_id, 0) + 1

    def times(self, job_id: str, until_s: float, work_s: float) -> Times:
        """Return the times of a job that has arrived.

        Args:
            job_id: Identifier of the job.
            until_s: Time of its departure, or the present time, in seconds.
            work_s: Iterations done times T_solo, in seconds.
        """
        away_s = self.parked_s.get(job_id, 0.0) + self.gone_s.get(job_id, 0.0)
        away_s += sum(until_s - since_s[job_id] for since_s in (self.parked_since_s, self.gone_since_s) if job_id in since_s)
        parks = self.parks.get(job_id, 0)
        return Times(self.arrived_s[job_id], self.admitted_s.get(job_id, until_s), until_s, away_s, parks, work_s)

    def placed_s(self, job_id: str) -> float:
        """Return the time from the first admission to the departure of a job, less the time for which it was parked, in seconds."""
        return self.departed_s[job_id] - self.admitted_s[job_id] - self.parked_s.get(job_id, 0.0)


def stays_of(log: Iterable[Event]) -> StayTimes:
    """Return the times of arrivals, admissions and departures of an event log."""
    stays = StayTimes()
    for event in log:
        stays.follow(event)
    return stays


def stays_s(scenario: Scenario, stays: StayTimes) -> dict[str, float]:
    """Return the seconds for which each job had a place, by id."""
    stay_s = {job.id: stays.placed_s(job.id) for job in scenario.jobs}
    for job_id, seconds in stay_s.items():
        if seconds <= 0:
            raise InputError(f"job {job_id}: its stay is too short to be measured at {stays.admitted_s[job_id]:g} s")
    return stay_s
