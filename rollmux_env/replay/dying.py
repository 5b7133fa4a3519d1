"""What dies in an event replay with failures, and begins again: jobs, those on a node that dies, and the scheduler.

`rollmux_env.replay.event` has the rules, and `rollmux_env.replay.failures` says when what dies.
"""

from __future__ import annotations

from math import inf
from typing import cast

from rollmux_env.cluster.events import Progress
from rollmux_env.replay.failures import AbsentScheduler, Failure, FailureLog, Failures, FailureTimes, Loss
from rollmux_env.replay.replayed import TRAINING_POOL, ReplayedJob
from rollmux_env.replay.running_jobs import RunningJobs
from rollmux_env.scheduler.core import Scheduler

_SHORTEST_S = 1e-3  # stay of a job that dies in an iteration that it has begun when its stay was not yet over


class Dying:
    """Deaths, and what the scheduler is told of them.

    Args:
        failures, times: what dies, and when. jobs: those that may. scheduler: that may.

    Attributes:
        times: as given. log: what has died. again: by id, jobs that have died and have no place yet, as they were.
        back_s: when the scheduler is back; infinite while it is there.
    """

    def __init__(self, failures: Failures, times: FailureTimes, jobs: RunningJobs, scheduler: Scheduler) -> None:
        self._failures = failures
        self._jobs = jobs
        self._scheduler = scheduler
        self._absent = AbsentScheduler()
        self.times = times
        self.log = FailureLog()
        self.again: dict[str, ReplayedJob] = {}
        self.back_s = inf

    def strike(self, until_s: float, now_s: float) -> bool:
        """Let die what dies by `until_s`, and the scheduler come back; whether there is something to decide about placements."""
        log, before = self.log, len(self.log.losses)
        back = self.back_s <= until_s
        if back:
            self.back_s, self._jobs.listener = inf, self._scheduler
            self._absent.hand_over(self._scheduler)
            self.times.begin_scheduler(now_s)
        for failure in self.times.due(until_s):
            if failure.cause == "scheduler":
                log.scheduler_s.append(now_s)
                self.back_s = now_s + self._failures.scheduler_down_s
                self._jobs.listener = cast("Scheduler", self._absent)
                continue
            struck = self._struck(failure)
            log.nodes += failure.cause == "node" and bool(struck)
            for job_run in struck:
                log.losses.append(Loss(now_s, job_run.job.id, failure.cause, job_run.lost(now_s)))
                self._kill(job_run, now_s)
                self.times.end(job_run.job.id)
        return back or len(log.losses) > before

    def _struck(self, failure: Failure) -> list[ReplayedJob]:
        """The jobs that a failure takes along: those that are there, and not those that a move has just taken from their place."""
        running = self._jobs.by_id
        if failure.cause == "job":
            job_run = running.get(failure.job_id)
            return [job_run] if job_run is not None and job_run.placed else []
        key = failure.number if failure.pool == "rollout" else TRAINING_POOL
        there = [one for one in running.values() if one.placed and one.group.number == failure.group]
        return [one for one in there if key == TRAINING_POOL or key in one.keys["rollout"]]

    def _kill(self, job_run: ReplayedJob, now_s: float) -> None:
        """A job dies, and arrives anew with what it has left."""
        job, begins, listener = job_run.job, job_run.saved, self._jobs.listener
        self._jobs.cut(job_run, now_s)
        listener.failed(job.id)
        done = Progress(job.id, begins - job_run.begins, job_run.busy_s["rollout"], job_run.busy_s["training"])
        listener.cleared(job.id, done)
        stay: dict[str, float | int] = {"arrival_s": now_s}
        if job.iterations is not None:
            stay["iterations"] = job.iterations - (begins - job_run.begins)
        else:
            stay["duration_s"] = max(job_run.leaves_s - now_s, _SHORTEST_S)
        job_run.job = job.model_copy(update=stay)
        listener.arrived(job_run.job.model_copy(update={"drift": ()}))
        del self._jobs.by_id[job.id]
        self.again[job.id] = job_run
