"""Watches whether running jobs are as they were profiled and keep their SLOs, and looks for a better place where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.events import Reprofiled
from rollmux_env.cluster.plan import Plan, Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase
from rollmux_env.scheduler.commands import AtRisk
from rollmux_env.scheduler.estimates import Estimates
from rollmux_env.scheduler.pace import WINDOW, Pace
from rollmux_env.scheduler.relocation import better_place

_CHANGE = 0.01  # of what a job keeps on a GPU; less is how exactly that is measured


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
        paces: by job. late: ids of the jobs that break their SLO as of late. estimates: of shapes that nobody has profiled.
    """

    def __init__(self, make_policy: Callable[[], Policy]) -> None:
        self._make_policy = make_policy
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
            plan = better_place(state, job_id, self._make_policy())
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
