"""Worst cases of shapes that nobody has profiled, until the job's own iterations have measured them.

A job is profiled as it is written. In another shape its worst case is an estimate. Iterations are shorter than the worst case by as
much in one shape as in another: so when enough of them are known of both, the estimate is replaced by the profile, times as long as
the phases took in the shape of what they took in the job's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job

PhaseOfShape = tuple[int, Side]
"""Number of a shape, and a phase in it."""


class Estimates:
    """What is estimated of all jobs, and what their iterations say."""

    def __init__(self) -> None:
        self._open: dict[str, set[PhaseOfShape]] = {}
        self._mean_s: dict[str, dict[int, Mapping[str, float]]] = {}

    def add(self, job_id: str, phases: Collection[PhaseOfShape]) -> None:
        """Worst cases of a job are estimates."""
        self._open[job_id] = {*phases}

    def forget(self, job_id: str) -> None:
        """A job has ended; one that comes again is told of again."""
        self._open.pop(job_id, None)
        self._mean_s.pop(job_id, None)

    def measured(self, job: Job, shape: int, mean_s: Mapping[str, float]) -> Job:
        """The job with what its iterations have measured by now; itself where that is nothing new.

        Args:
            shape: in which it is. mean_s: of its phases there of late, by name, as far as enough of them are known.
        """
        if not self._open.get(job.id):
            return job
        known = self._mean_s.setdefault(job.id, {})
        known[shape] = mean_s
        own_s = known.get(0, {})
        for number, phase in sorted(self._open[job.id]):
            if phase in own_s and phase in known.get(number, {}):
                self._open[job.id].discard((number, phase))
                profiled_s = getattr(job, phase).worst_case_s
                job = job.known_anew(number, phase, worst_case_s=profiled_s * known[number][phase] / own_s[phase])
        return job

    def scaled(self, former: Job, job: Job) -> Job:
        """A job whose own worst cases are others than before: what was derived from them changes alike."""
        for number, phase in sorted(self._open.get(job.id, ())):
            times = getattr(job, phase).worst_case_s / getattr(former, phase).worst_case_s
            if times != 1:
                estimate_s = getattr(job.phases(number), phase).worst_case_s
                job = job.known_anew(number, phase, worst_case_s=estimate_s * times)
        return job
