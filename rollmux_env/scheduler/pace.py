"""How fast a job is of late: whether its profile still holds, and whether it keeps its SLO.

A profile is a worst case. One that is exceeded again and again is none any more: the job is then planned by the longest phases of
late. Phases that stay below it prove nothing, since the next one may be as long as it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean, median

from rollmux_env.kernel.tables import TOLERANCE
from rollmux_env.keys.job import Job

WINDOW = 8  # of the last iterations that are looked at
LEAST = 4  # of them before anything is concluded
_EXCEEDED = 1.1  # of the profile by the median
_MATTERS = 0.01  # of the solo time; less is noise


class Pace:
    """The last warm iterations of a job in its place."""

    def __init__(self) -> None:
        self.asked = 0  # iterations since a better place was looked for
        self._iterations: deque[float] = deque(maxlen=WINDOW)
        self._phases: dict[str, deque[float]] = {}
        self._cold = False

    def phase(self, name: str, seconds: float, cold: bool) -> None:
        """`rollout`, `training` or `sync` has taken so long, permits and switches aside; one of a cold start does not count."""
        self._cold |= cold
        if not cold:
            self._phases.setdefault(name, deque(maxlen=WINDOW)).append(seconds)

    def iteration(self, seconds: float) -> None:
        """An iteration is over, from the wish for its rollout to the end of its sync; with a cold phase it does not count."""
        if not self._cold:
            self._iterations.append(seconds)
        self._cold = False
        self.asked += 1

    @property
    def iteration_s(self) -> float | None:
        """Mean seconds of an iteration of late; None before enough are known."""
        return fmean(self._iterations) if len(self._iterations) >= LEAST else None

    def is_late(self, job: Job) -> bool:
        """Whether the job breaks its SLO if it goes on as of late."""
        return self.iteration_s is not None and self.iteration_s > job.slo * job.solo_s * (1 + TOLERANCE)

    @property
    def mean_s(self) -> dict[str, float]:
        """Mean seconds of late of those of `rollout`, `training` and `sync` of which enough are known."""
        return {name: fmean(seconds) for name, seconds in self._phases.items() if len(seconds) >= LEAST}

    def alone_s(self, job: Job, shape: int) -> float | None:
        """T_solo by the job's phases of late: the profile's, times as much as they were of what it says of them, in the mean.

        None before enough of both phases are known. A sync that nobody has reported takes what is planned.
        """
        known_s, mean_s = _known_s(job, shape), self.mean_s
        if not {"rollout", "training"} <= mean_s.keys():
            return None
        return job.solo_s * _iteration_s(job, known_s | mean_s) / _iteration_s(job, known_s)

    def drifted(self, job: Job, shape: int) -> Job | None:
        """The job as it is of late in its shape, if its phases take longer than its profile says; else None."""
        known_s = _known_s(job, shape)
        longer_s = {
            name: max(seconds)
            for name, seconds in self._phases.items()
            if len(seconds) >= LEAST and _exceeds(job, known_s[name], median(seconds))
        }
        if not longer_s:
            return None
        if "rollout" in longer_s:
            job = job.known_anew(shape, "rollout", worst_case_s=longer_s["rollout"])
        if "training" in longer_s:
            job = job.known_anew(shape, "training", worst_case_s=longer_s["training"])
        return job.model_copy(update={"sync_s": longer_s["sync"]}) if "sync" in longer_s else job


def _known_s(job: Job, shape: int) -> dict[str, float]:
    """What the profile says of a job in a shape."""
    phases = job.phases(shape)
    return {"rollout": phases.rollout.worst_case_s, "training": phases.training.worst_case_s, "sync": job.sync_s}


def _iteration_s(job: Job, seconds: Mapping[str, float]) -> float:
    return job.iteration_s(seconds["rollout"], seconds["training"], seconds["sync"])


def _exceeds(job: Job, known_s: float, seconds: float) -> bool:
    return seconds > _EXCEEDED * known_s and seconds - known_s > _MATTERS * job.solo_s
