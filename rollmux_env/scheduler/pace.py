"""How fast a job is of late: whether its profile still holds, and whether it keeps its SLO.

A profile is a worst case. One that is exceeded again and again is none any more: the job is then planned by the longest phases of
late. Phases that stay below it prove nothing, since the next one may be as long as it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean, median

from rollmux_env.kernel.tables import TOLERANCE
from rollmux_env.scenario import Job

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

    def observed(self, job: Job) -> Job | None:
        """The job with the mean seconds of its phases of late in place of its worst case; None before enough are known.

        A sync that nobody has reported keeps the seconds that it is planned with.
        """
        mean_s = {name: fmean(seconds) for name, seconds in self._phases.items() if len(seconds) >= LEAST}
        return _with_seconds(job, mean_s) if {"rollout", "training"} <= mean_s.keys() else None

    def drifted(self, job: Job) -> Job | None:
        """The job as it is of late, if its phases take longer than its profile says; else None."""
        longer_s = {
            name: max(seconds)
            for name, seconds in self._phases.items()
            if len(seconds) >= LEAST and self._exceeds(job, name, median(seconds))
        }
        return _with_seconds(job, longer_s) if longer_s else None

    @staticmethod
    def _exceeds(job: Job, name: str, seconds: float) -> bool:
        known: float = job.sync_s if name == "sync" else getattr(job, name).worst_case_s
        return seconds > _EXCEEDED * known and seconds - known > _MATTERS * job.solo_s


def _with_seconds(job: Job, seconds: Mapping[str, float]) -> Job:
    """The job with other seconds of some of its phases, and of its sync."""
    changed: dict[str, object] = {
        name: getattr(job, name).model_copy(update={"worst_case_s": seconds[name]})
        for name in ("rollout", "training")
        if name in seconds
    }
    if "sync" in seconds:
        changed["sync_s"] = seconds["sync"]
    return job.model_copy(update=changed)
