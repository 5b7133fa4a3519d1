"""The common part of the yardsticks `optimal` and `gavel`: at every instant jobs are rearranged at no cost, and the rest queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job

Arrangement = TypeVar("Arrangement")


class FreelyArranged(ABC, Generic[Arrangement]):
    """Running jobs, and the queue of jobs that wait because of `max_nodes`. Driven by `rollmux_env.replay.yardstick`.

    Attributes:
        state: State that knows all jobs that have arrived but places none of them. Only the progress columns of its job table are
            written here, for the metrics.
        running: Running jobs in order of arrival.
        waiting: Waiting jobs in order of arrival.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.running: list[Job] = []
        self.waiting: list[Job] = []

    @abstractmethod
    def arrange(self, jobs: Sequence[Job]) -> Arrangement | None:
        """Return the best arrangement of some jobs, or None if the limits allow none or none was found."""

    @abstractmethod
    def adopt(self, arrangement: Arrangement | None) -> None:
        """Let the running jobs run as arranged, or as before if the arrangement is None."""

    @abstractmethod
    def seconds_of(self, row: int, iterations: float) -> float:
        """Return the seconds that a running job takes for a number of iterations in its current arrangement."""

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Append jobs to the end of the queue."""
        for job in jobs:
            apply(self.state, Arrived(now_s, job))
            self.waiting.append(job)

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Remove the jobs whose stay ends by `until_s`, and return their ids."""
        leaving = {job.id: job for job in self.running if self._departure_s(job, now_s) <= until_s}
        self.running = [job for job in self.running if job.id not in leaving]
        for job_id, job in leaving.items():
            if job.iterations is not None:
                self.state.tables.jobs.done[self.state.row(job_id)] = job.iterations
        return [*leaving]

    def serve(self, now_s: float) -> list[str]:
        """Rearrange the jobs and admit as many as fit from the head of the queue. Return the ids of the admitted jobs."""
        fit = len(self.waiting)
        arrangement = self.arrange(self.running + self.waiting)
        if arrangement is None:  # not all fit: add them one after the other until one does not fit
            arrangement, fit = self.arrange(self.running), 0
            while fit < len(self.waiting) and (more := self.arrange(self.running + self.waiting[: fit + 1])) is not None:
                arrangement, fit = more, fit + 1
        admitted, self.waiting = self.waiting[:fit], self.waiting[fit:]
        self.running += admitted
        for job in admitted:
            row = self.state.row(job.id)
            self.state.tables.jobs.admitted_s[row] = now_s
            self.state.tables.jobs.leaves_s[row] = np.inf if job.duration_s is None else now_s + job.duration_s
        self.adopt(arrangement)
        return [job.id for job in admitted]

    def next_departure_s(self, now_s: float) -> float:
        """Return the time at which the next running job leaves if nothing changes before, infinite if no job runs."""
        return min((self._departure_s(job, now_s) for job in self.running), default=np.inf)

    def _departure_s(self, job: Job, now_s: float) -> float:
        row = self.state.row(job.id)
        if job.iterations is None:
            return float(self.state.tables.jobs.leaves_s[row])
        return now_s + self.seconds_of(row, job.iterations - float(self.state.tables.jobs.done[row]))
