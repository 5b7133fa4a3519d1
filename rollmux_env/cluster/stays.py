"""The stays of jobs over time: when they got their places, those that are parked, and how long those were that have departed."""

from __future__ import annotations

from typing import NamedTuple

KEPT = 200  # number of departed jobs whose lengths are kept, of each class and in all


class ParkedStay(NamedTuple):
    """The stay of a parked job so far.

    Attributes:
        parked_at_s: Time since when it has had no place, in seconds.
        placed_s: Time for which it has had places, in seconds.
        for_job: Id of the job that got a place instead, or an empty text.
    """

    parked_at_s: float
    placed_s: float
    for_job: str

    @property
    def words(self) -> str:
        """Text that names the job that got the place, and the time."""
        return f"{self.for_job and f' for {self.for_job}'} since {self.parked_at_s / 3600:.2f} h"


class Stays:
    """The stays of jobs, by id.

    Attributes:
        placed_at_s: Time at which each running job got its present place, by admission or move, in seconds.
        parked: Jobs that are parked.
        lengths_h: Lengths of the last departed jobs in hours of T_solo, in order of departure.
        lengths_of_class_h: The same by the jobs' class.
    """

    def __init__(self) -> None:
        self.placed_at_s: dict[str, float] = {}
        self.parked: dict[str, ParkedStay] = {}
        self.lengths_h: dict[str, float] = {}
        self.lengths_of_class_h: dict[str, dict[str, float]] = {}

    def copy(self) -> Stays:
        """Return independent records."""
        twin = Stays()
        twin.placed_at_s, twin.parked = self.placed_at_s.copy(), self.parked.copy()
        twin.lengths_h, twin.lengths_of_class_h = self.lengths_h, self.lengths_of_class_h  # replaced at a departure, never changed
        return twin

    # The following methods are for `apply` only.

    def end(self, job_id: str, class_name: str, length_h: float) -> None:
        """Record that a job has departed.

        Args:
            job_id: Identifier of the job.
            class_name: Class of the job.
            length_h: Work that it has done, in hours of T_solo.
        """
        del self.placed_at_s[job_id]
        self.add_length(job_id, class_name, length_h)

    def add_length(self, job_id: str, class_name: str, length_h: float) -> None:
        """Keep the length of a job that has departed; the arguments are those of `end`."""
        self.lengths_h = _last({**self.lengths_h, job_id: length_h})
        of_class = _last({**self.lengths_of_class_h.get(class_name, {}), job_id: length_h})
        self.lengths_of_class_h = {**self.lengths_of_class_h, class_name: of_class}

    def begin_again(self, job_id: str, class_name: str) -> None:
        """Forget the length of a job that arrives again: its departure was none."""
        if job_id in self.lengths_h:
            self.lengths_h = _without(job_id, self.lengths_h)
        of_class = self.lengths_of_class_h.get(class_name, {})
        if job_id in of_class:
            self.lengths_of_class_h = {**self.lengths_of_class_h, class_name: _without(job_id, of_class)}


def _last(lengths_h: dict[str, float]) -> dict[str, float]:
    """Return the lengths without the oldest if they are too many."""
    if len(lengths_h) > KEPT:
        del lengths_h[next(iter(lengths_h))]
    return lengths_h


def _without(job_id: str, lengths_h: dict[str, float]) -> dict[str, float]:
    return {other: length_h for other, length_h in lengths_h.items() if other != job_id}
