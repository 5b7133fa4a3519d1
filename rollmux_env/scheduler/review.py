"""Observation of running jobs: whether they match their profile and keep their SLO, and a better place if they do not.

A profile is a worst case. A profile that is exceeded repeatedly is replaced by the longest recent phases. Phases below the profile
prove nothing, since the next one may be as long as the profile says.

A job is profiled as written. In another shape its worst case is an estimate. Iterations are assumed to be shorter than the worst
case by the same factor in both shapes. When enough iterations of both are known, the estimate is therefore replaced by the profile
times the ratio of the mean durations in the two shapes.
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

_CHANGE = 0.01  # smallest relative change of a job's memory on a GPU that exceeds the error of measurement
WINDOW = 8  # number of recent iterations that are considered
MIN_ITERATIONS = 4  # smallest number of iterations from which anything is concluded
_DRIFT_FACTOR = 1.1  # factor by which the median must exceed the profile
_MATTERS = 0.01  # smallest excess, as a share of the solo time, that is not noise


class Pace:
    """The recent warm iterations of a job in its place."""

    def __init__(self) -> None:
        self.asked = 0  # number of iterations since a better place was last searched
        self._iterations: deque[float] = deque(maxlen=WINDOW)
        self._phases: dict[str, deque[float]] = {}
        self._cold = False

    def phase(self, name: str, seconds: float, cold: bool) -> None:
        """Record the duration of a phase. Phases with a cold start do not count.

        Args:
            name: `rollout`, `training` or `sync`.
            seconds: Duration without waiting for permits and without switches.
            cold: Whether it began with a cold start.
        """
        self._cold |= cold
        if not cold:
            self._phases.setdefault(name, deque(maxlen=WINDOW)).append(seconds)

    def iteration(self, seconds: float) -> None:
        """Record the duration of an iteration, from the request for its rollout to the end of its sync.

        An iteration with a cold phase does not count.
        """
        if not self._cold:
            self._iterations.append(seconds)
        self._cold = False
        self.asked += 1

    @property
    def iteration_s(self) -> float | None:
        """Mean seconds of recent iterations, or None before enough are known."""
        return fmean(self._iterations) if len(self._iterations) >= MIN_ITERATIONS else None

    def is_late(self, job: Job) -> bool:
        """Return whether the job breaks its SLO at its recent speed."""
        return self.iteration_s is not None and self.iteration_s > job.slo * job.solo_s * (1 + TOLERANCE)

    @property
    def mean_s(self) -> dict[str, float]:
        """Mean recent seconds of `rollout`, `training` and `sync`, for those of which enough are known."""
        return {name: fmean(seconds) for name, seconds in self._phases.items() if len(seconds) >= MIN_ITERATIONS}

    def alone_s(self, job: Job, shape: int) -> float | None:
        """Return T_solo by the job's recent phases: the profile's, scaled by the ratio of their mean durations to the profile.

        The answer is None before enough of both phases are known. A sync without reports takes its planned time.
        """
        known_s, mean_s = _known_s(job, shape), self.mean_s
        if not {"rollout", "training"} <= mean_s.keys():
            return None
        return job.solo_s * _iteration_s(job, known_s | mean_s) / _iteration_s(job, known_s)

    def drifted(self, job: Job, shape: int) -> Job | None:
        """Return the job with its recent figures in its shape if its phases take longer than its profile says, else None."""
        known_s = _known_s(job, shape)
        longer_s = {
            name: max(seconds)
            for name, seconds in self._phases.items()
            if len(seconds) >= MIN_ITERATIONS and _exceeds(job, known_s[name], median(seconds))
        }
        if not longer_s:
            return None
        if "rollout" in longer_s:
            job = job.known_anew(shape, "rollout", worst_case_s=longer_s["rollout"])
        if "training" in longer_s:
            job = job.known_anew(shape, "training", worst_case_s=longer_s["training"])
        return job.model_copy(update={"sync_s": longer_s["sync"]}) if "sync" in longer_s else job


class Estimates:
    """Estimated worst cases of shapes without a profile, and what the jobs' iterations say about them."""

    def __init__(self) -> None:
        self._open: dict[str, set[PhaseOfShape]] = {}
        self._mean_s: dict[str, dict[int, Mapping[str, float]]] = {}

    def add(self, job_id: str, phases: Collection[PhaseOfShape]) -> None:
        """Mark worst cases of a job as estimates."""
        self._open[job_id] = {*phases}

    def forget(self, job_id: str) -> None:
        """Remove a job that has ended."""
        self._open.pop(job_id, None)
        self._mean_s.pop(job_id, None)

    def measured(self, job: Job, shape: int, mean_s: Mapping[str, float]) -> Job:
        """Return the job with the worst cases that its iterations have measured by now, or the same job if there are none.

        Args:
            job: Job with its known figures.
            shape: Number of its current shape.
            mean_s: Mean recent seconds of its phases in this shape, for those of which enough are known.
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
        """Return a job with its estimates scaled like its own worst cases.

        Args:
            former: Job with its former worst cases.
            job: Job with its new worst cases.
        """
        for number, phase in sorted(self._open.get(job.id, ())):
            times = getattr(job, phase).worst_case_s / getattr(former, phase).worst_case_s
            if times != 1:
                estimate_s = getattr(job.phases(number), phase).worst_case_s
                job = job.known_anew(number, phase, worst_case_s=estimate_s * times)
        return job


class Finding(NamedTuple):
    """The consequences for a late job.

    Attributes:
        plan: Move to a better place; empty if there is none or it was not searched.
        risk: Warning to give, or None.
    """

    plan: Plan
    risk: AtRisk | None


class Review:
    """The recent iterations of all running jobs.

    Args:
        make_policy: Factory of the policies that are asked for a better place.

    Attributes:
        make_policy: Factory of the policies that are asked for a better place.
        paces: Recent iterations by job.
        late: Identifiers of the jobs that break their SLO at their recent speed.
        estimates: Estimated worst cases of shapes without a profile.
        due: Jobs that have finished an iteration since they were last reviewed.
    """

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self.make_policy = make_policy
        self.paces: dict[str, Pace] = {}
        self.late: set[str] = set()
        self.estimates = Estimates()
        self.due: dict[str, None] = {}

    def pace(self, job_id: str) -> Pace:
        """Return the recent iterations of a job."""
        return self.paces.setdefault(job_id, Pace())

    def iterated(self, job_id: str, seconds: float) -> None:
        """Record the duration of a finished iteration."""
        self.pace(job_id).iteration(seconds)
        self.due[job_id] = None

    def forget(self, job_id: str) -> None:
        """Remove the recent iterations of a job that has another place or none."""
        self.paces.pop(job_id, None)
        self.due.pop(job_id, None)
        self.late.discard(job_id)

    def take_due(self) -> list[str]:
        """Return and clear the jobs in `due`."""
        due, self.due = [*self.due], {}
        return due

    def reprofiled(self, state: State, job_ids: Iterable[str], now_s: float) -> list[Reprofiled]:
        """Return new figures of jobs that take longer than known, or whose estimates have been measured.

        Args:
            state: State with the known figures.
            job_ids: Jobs to review.
            now_s: Current time, in seconds.
        """
        events = []
        for job_id in job_ids:
            job, shape, pace = state.job(job_id), state.shape(job_id), self.pace(job_id)
            newer = self.estimates.measured(job, shape, pace.mean_s)
            newer = pace.drifted(newer, shape) or newer
            if newer is not job:
                events.append(Reprofiled(now_s, self.estimates.scaled(job, newer)))
        return events

    def review_job(self, state: State, job_id: str, movable: bool) -> Finding:
        """Return whether a job is late, and a better place, which is searched the first time and regularly afterwards.

        Args:
            state: State that the policy is shown.
            job_id: Identifier of the job.
            movable: Whether the job may be moved now.
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
    """Return a running job with the memory that one of its phases was observed to keep on each GPU, or None if it is known already.

    The new figure is limited to the available memory.
    """
    job, shape = state.job(job_id), state.shape(job_id)
    part: Phase = getattr(job.phases(shape), phase)
    more_gb = min(device_gb - part.device_gb, _room_gb(state, job_id, phase))
    if more_gb <= _CHANGE * device_gb:
        return None
    return job.known_anew(shape, phase, device_gb=part.device_gb + more_gb)


def job_starting(job: Job, phase: Side, cold_s: float) -> Job:
    """Return a job with an observed cold start of a phase."""
    part: Phase = getattr(job, phase)
    return job.model_copy(update={phase: part.model_copy(update={"switch": part.switch.model_copy(update={"cold_s": cold_s})})})


def _room_gb(state: State, job_id: str, phase: Side) -> float:
    """Return the memory left on each GPU of the nodes of a running job's phase, in GB, or infinity without a limit."""
    view, pools = state.view, state.limits.pools["device_gb"]
    group = view.groups[view.jobs["group"][state.row(job_id)]]
    if phase == "training" or state.cluster.one_device or group["exclusive"]:
        return float(pools[group["training_pool"]] - group["training_device_gb"])
    pinned = np.isin(group["node_number"][: group["n_nodes"]], state.pins(job_id))
    return float(pools[group["rollout_pool"]] - group["node_device_gb"][: group["n_nodes"]][pinned].max())


def _known_s(job: Job, shape: int) -> dict[str, float]:
    """Return the profiled seconds of a job's phases and sync in a shape."""
    phases = job.phases(shape)
    return {"rollout": phases.rollout.worst_case_s, "training": phases.training.worst_case_s, "sync": job.sync_s}


def _iteration_s(job: Job, seconds: Mapping[str, float]) -> float:
    return job.iteration_s(seconds["rollout"], seconds["training"], seconds["sync"])


def _exceeds(job: Job, known_s: float, seconds: float) -> bool:
    return seconds > _DRIFT_FACTOR * known_s and seconds - known_s > _MATTERS * job.solo_s
