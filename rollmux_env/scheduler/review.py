"""Watches whether running jobs are as they were profiled and keep their SLOs, and looks for a better place where they do not.

A profile is a worst case. One that is exceeded again and again is none any more: the job is then planned by the longest phases of
late. Phases that stay below it prove nothing, since the next one may be as long as it says.

A job is profiled as it is written. In another shape its worst case is an estimate. Iterations are shorter than the worst case by as
much in one shape as in another: so when enough of them are known of both, the estimate is replaced by the profile, times as long as
the phases took in the shape of what they took in the job's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.events import Reprofiled
from rollmux_env.cluster.plan import Plan, Policy
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import TOLERANCE
from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.scheduler.commands import AtRisk
from rollmux_env.scheduler.facts import PhaseOfShape
from rollmux_env.scheduler.relocation import better_place

_CHANGE = 0.01  # of what a job keeps on a GPU; less is how exactly that is measured
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


class Estimates:
    """Worst cases of shapes that nobody has profiled, and what the iterations of the jobs say of them."""

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


class Finding(NamedTuple):
    """What is to be done about a job that is late.

    Attributes:
        plan: its move to a better place; nothing where there is none, or it was not looked for.
        risk: what to say; None: nothing new.
    """

    plan: Plan
    risk: AtRisk | None


class Review:
    """The last iterations of all running jobs.

    Args:
        make_policy: makes the policy that is asked for a better place.

    Attributes:
        make_policy: as given. paces: by job.
        late: ids of the jobs that break their SLO as of late. estimates: of shapes that nobody has profiled.
    """

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self.make_policy = make_policy
        self.paces: dict[str, Pace] = {}
        self.late: set[str] = set()
        self.estimates = Estimates()
        self._due: dict[str, None] = {}

    def pace(self, job_id: str) -> Pace:
        """That of a job."""
        return self.paces.setdefault(job_id, Pace())

    def iterated(self, job_id: str, seconds: float) -> None:
        """An iteration is over."""
        self.pace(job_id).iteration(seconds)
        self._due[job_id] = None

    def forget(self, job_id: str) -> None:
        """A job has another place, or none any more: what it did of late says nothing."""
        self.paces.pop(job_id, None)
        self._due.pop(job_id, None)
        self.late.discard(job_id)

    @property
    def is_due(self) -> bool:
        """Whether jobs have done an iteration since `due` was last asked."""
        return bool(self._due)

    def due(self) -> list[str]:
        """Jobs that have done an iteration since this was last asked."""
        due, self._due = [*self._due], {}
        return due

    def reprofiled(self, state: State, job_ids: Iterable[str], now_s: float) -> list[Reprofiled]:
        """Jobs that take longer than is known of them, or whose shape is measured by now, as they are."""
        events = []
        for job_id in job_ids:
            job, shape, pace = state.job(job_id), state.shape(job_id), self.pace(job_id)
            newer = self.estimates.measured(job, shape, pace.mean_s)
            newer = pace.drifted(newer, shape) or newer
            if newer is not job:
                events.append(Reprofiled(now_s, self.estimates.scaled(job, newer)))
        return events

    def look(self, state: State, job_id: str, movable: bool) -> Finding:
        """See whether a job is late, and look for a better place the first time and every so often.

        Args:
            movable: whether it may be moved now.
        """
        job, pace = state.job(job_id), self.pace(job_id)
        if pace.iteration_s is None:
            return Finding((), None)
        if not pace.is_late(job):
            self.late.discard(job_id)
            return Finding((), None)
        fresh = job_id not in self.late
        self.late.add(job_id)
        plan: Plan = ()
        if movable and (fresh or pace.asked >= WINDOW):
            pace.asked = 0
            plan = better_place(state, job_id, self.make_policy())
        return Finding(plan, AtRisk(job_id, pace.iteration_s / job.solo_s, bool(plan)) if fresh or plan else None)


def job_keeping(state: State, job_id: str, phase: Side, device_gb: float) -> Job | None:
    """A running job with what one of its phases has been seen to keep, as far as there is memory; None: as is known already."""
    job, shape = state.job(job_id), state.shape(job_id)
    part: Phase = getattr(job.phases(shape), phase)
    more_gb = min(device_gb - part.device_gb, _room_gb(state, job_id, phase))
    if more_gb <= _CHANGE * device_gb:
        return None
    return job.known_anew(shape, phase, device_gb=part.device_gb + more_gb)


def job_starting(job: Job, phase: Side, cold_s: float) -> Job:
    """A job with an observed cold start of a phase in place of the one that was known."""
    part: Phase = getattr(job, phase)
    return job.model_copy(update={phase: part.model_copy(update={"switch": part.switch.model_copy(update={"cold_s": cold_s})})})


def _room_gb(state: State, job_id: str, phase: Side) -> float:
    """Memory that is left for more on each GPU of the nodes of a running job's phase, GB; infinite where there is no limit."""
    view, pools = state.view, state.limits.pools["device_gb"]
    group = view.groups[view.jobs["group"][state.row(job_id)]]
    if phase == "training" or state.cluster.one_device or group["exclusive"]:
        return float(pools[group["training_pool"]] - group["training_device_gb"])
    pinned = np.isin(group["node_number"][: group["n_nodes"]], state.pins(job_id))
    return float(pools[group["rollout_pool"]] - group["node_device_gb"][: group["n_nodes"]][pinned].max())


def _known_s(job: Job, shape: int) -> dict[str, float]:
    """What the profile says of a job in a shape."""
    phases = job.phases(shape)
    return {"rollout": phases.rollout.worst_case_s, "training": phases.training.worst_case_s, "sync": job.sync_s}


def _iteration_s(job: Job, seconds: Mapping[str, float]) -> float:
    return job.iteration_s(seconds["rollout"], seconds["training"], seconds["sync"])


def _exceeds(job: Job, known_s: float, seconds: float) -> bool:
    return seconds > _EXCEEDED * known_s and seconds - known_s > _MATTERS * job.solo_s
