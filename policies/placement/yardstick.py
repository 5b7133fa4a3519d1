"""What the yardsticks `optimal` and `gavel` share: jobs are arranged anew for free at every instant, and the others queue."""

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
    """Running jobs and the queue of jobs that wait because of `max_nodes`, for `rollmux_env.replay.yardstick`.

    Attributes:
        state: it knows the jobs that have arrived, by row, and places none of them: only the columns of its job table that say
            how far a job is are written here, for the metrics.
        running, waiting: jobs in order of arrival.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.running: list[Job] = []
        self.waiting: list[Job] = []

    @abstractmethod
    def arrange(self, jobs: Sequence[Job]) -> Arrangement | None:
        """The best arrangement of some jobs; None where the limits leave none, or none was found."""

    @abstractmethod
    def take(self, arrangement: Arrangement | None) -> None:
        """Let the running jobs run as arranged; without an arrangement, as they did."""

    @abstractmethod
    def seconds_of(self, row: int, iterations: float) -> float:
        """How long a running job takes for so many iterations, as it is arranged."""

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Let jobs join the end of the queue."""
        for job in jobs:
            apply(self.state, Arrived(now_s, job))
            self.waiting.append(job)

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Take out the jobs whose stay ends by `until_s`; returns their ids."""
        leaving = {job.id: job for job in self.running if self._departure_s(job, now_s) <= until_s}
        self.running = [job for job in self.running if job.id not in leaving]
        for job_id, job in leaving.items():
            if job.iterations is not None:
                self.state.tables.jobs.done[self.state.row(job_id)] = job.iterations
        return [*leaving]

    def serve(self, now_s: float) -> list[str]:
        """Arrange the jobs anew, and admit from the head of the queue whoever fits; returns the ids of the admitted."""
        fit = len(self.waiting)
        arrangement = self.arrange(self.running + self.waiting)
        if arrangement is None:  # not all fit: one after the other, until one does not
            arrangement, fit = self.arrange(self.running), 0
            while fit < len(self.waiting) and (more := self.arrange(self.running + self.waiting[: fit + 1])) is not None:
                arrangement, fit = more, fit + 1
        admitted, self.waiting = self.waiting[:fit], self.waiting[fit:]
        self.running += admitted
        for job in admitted:
            row = self.state.row(job.id)
            self.state.tables.jobs.admitted_s[row] = now_s
            self.state.tables.jobs.leaves_s[row] = np.inf if job.duration_s is None else now_s + job.duration_s
        self.take(arrangement)
        return [job.id for job in admitted]

    def next_departure_s(self, now_s: float) -> float:
        """When the next running job leaves if nothing changes before; infinite where none runs."""
        return min((self._departure_s(job, now_s) for job in self.running), default=np.inf)

    def _departure_s(self, job: Job, now_s: float) -> float:
        row = self.state.row(job.id)
        if job.iterations is None:
            return float(self.state.tables.jobs.leaves_s[row])
        return now_s + self.seconds_of(row, job.iterations - float(self.state.tables.jobs.done[row]))
