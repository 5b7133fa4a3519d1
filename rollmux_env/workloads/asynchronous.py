"""Asynchronous jobs in streams: which jobs sample from weights that are versions old, and how many versions.

Each job is asynchronous with the probability of the option, and then has a staleness of 1, 2 or 4 with equal probability. Its sync
is a fifth of its two phases, beside them, as in the suite `asynchrony`: without one all stalenesses would be alike, as durations do
not vary. The shares are assumed. A job that does a number of iterations does those that its stay would hold alone, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.keys.job import Job
from rollmux_env.workloads import draws
from rollmux_env.workloads.options import WorkloadOptions

STALENESS = (1, 2, 4)
SYNC_SHARE = 0.2


def with_staleness(jobs: Sequence[Job], stays_s: Sequence[float], options: WorkloadOptions) -> tuple[Job, ...]:
    """The jobs of a stream, of which those that are drawn are asynchronous; with a share of 0 the same."""
    drawn = draws.uniform(options.seed, "asynchronous", len(jobs)).tolist()
    stalenesses = draws.uniform(options.seed, "staleness", len(jobs)).tolist()
    return tuple(
        _asynchronous(job, STALENESS[int(len(STALENESS) * v)], stay_s, options) if u < options.asynchronous else job
        for job, stay_s, u, v in zip(jobs, stays_s, drawn, stalenesses, strict=True)
    )


def _asynchronous(job: Job, staleness: int, stay_s: float, options: WorkloadOptions) -> Job:
    job = with_versions(job, staleness)
    return job.model_copy(update=draws.stay(options, stay_s, job.solo_s))


def with_versions(job: Job, staleness: int) -> Job:
    """The job with a staleness, and with the sync of asynchronous jobs."""
    sync_s = round(SYNC_SHARE * (job.rollout.worst_case_s + job.training.worst_case_s), 3)
    return job.model_copy(update={"staleness": staleness, "sync_s": sync_s})
