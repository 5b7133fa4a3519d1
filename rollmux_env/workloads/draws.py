"""Seeded random draws.

Every draw is an inverse distribution function of uniform numbers, with one stream per purpose. Streams therefore stay
the same across NumPy versions, and an option that changes one purpose does not affect the others.

A job of a stream is asynchronous with the probability of the option, and then has one of the stalenesses that are assumed
(`rollmux_env.keys.assumptions`: 1, 2 or 4), with equal probability. Its sync is a part of its two phases, beside them, as in the
suite `asynchrony`: without one all stalenesses would be alike where durations do not vary. A job that does a number of iterations
does those that its stay would hold alone, as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr, ndtri

from rollmux_env.keys.assumptions import Asynchrony
from rollmux_env.keys.cluster import SIDES
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual
from rollmux_env.portable import between, exp, log1p, uniform
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.predicted import model_sync_s

Array = NDArray[np.float64]


def lognormal_up_to(u: Array, mu: float, sigma: float, longest: float) -> Array:
    """Lognormal (mu, sigma of the logarithm), conditioned on being at most `longest`."""
    share = ndtr((math.log(longest) - mu) / sigma)
    return exp(mu + sigma * ndtri(share * np.maximum(u, 1e-12)))


def burst_arrivals(seed: int, n: int, within: float, apart: float) -> Array:
    """(n,) arrival times from 0 on, in bursts of 2 to 8.

    Gaps are exponential, of mean `within` inside a burst and mean `apart` between the last job of one and the first of the
    next; burst sizes are uniform. Times are scaled so that the last one is the mean gap times n - 1.
    """
    sizes = 2 + np.floor(7 * uniform(seed, "burst sizes", n)).astype(np.int64)
    first = np.zeros(n + 1, dtype=bool)
    starts = np.cumsum(sizes)
    first[starts[starts <= n]] = True
    gaps = -log1p(-uniform(seed, "gaps", n)) * np.where(first[:n], apart, within)
    return _ending_at(gaps, (n - 1) * (4 * within + apart) / 5)


def gamma_arrivals(seed: int, n: int, mean: float, cv: float) -> Array:
    """(n,) arrival times from 0 on; gaps are gamma of that mean and coefficient of variation, scaled to end at mean * (n - 1)."""
    alpha = cv**-2
    gaps = np.asarray(gammaincinv(alpha, uniform(seed, "gaps", n)), dtype=np.float64) / alpha
    return _ending_at(gaps, (n - 1) * mean)


def slos(options: WorkloadOptions, n: int, default: tuple[float, float] = (1.0, 2.0)) -> list[float]:
    """(n,) SLOs drawn as the options say, to four places."""
    low, high = options.slo or default
    return list(np.round(between(uniform(options.seed, "slos", n), low, high), 4).tolist())


def seconds(values: Array) -> list[float]:
    """Round to the millisecond for readable files; at least one."""
    return list(np.maximum(np.round(values, 3), 0.001).tolist())


def times(values: Array) -> list[float]:
    """To the millisecond; zero stays zero."""
    return list(np.round(values, 3).tolist())


def stay(options: WorkloadOptions, stay_s: float, solo_s: float) -> dict[str, Any]:
    """A stay as the job's `duration_s`, or as the `iterations` that it holds when the job runs alone, at least one."""
    if options.stays == "fixed":
        return {"duration_s": stay_s}
    return {"iterations": max(1, round(stay_s / solo_s))}


def stays_note(options: WorkloadOptions, stays_s: Sequence[float], jobs: Sequence[Job]) -> str:
    """Say what became of the stays of a trace as iterations; nothing where jobs have their stays.

    Args:
        options: the workload's options.
        stays_s: the stay of each job in the trace, seconds.
        jobs: the jobs, in the same order.
    """
    if options.stays == "fixed":
        return ""
    work_h = sum((job.iterations or 0) * job.solo_s for job in jobs) / 3600
    short = sum(stay_s < job.solo_s for stay_s, job in zip(stays_s, jobs, strict=True))
    less = f"; {short:,} are shorter than an iteration and do one" if short else ""
    return f"; stays are rounded to iterations{less}: {work_h:,.1f} h of work of {sum(stays_s) / 3600:,.1f} h in the trace"


def _ending_at(gaps: Array, last: float) -> Array:
    """Arrivals from gaps (the first gap is not used), scaled to end at `last`."""
    arrivals = np.concatenate(([0.0], np.cumsum(gaps[1:])))
    return arrivals * (last / arrivals[-1]) if len(arrivals) > 1 else arrivals


def with_staleness(jobs: Sequence[Job], stays_s: Sequence[float], options: WorkloadOptions) -> tuple[Job, ...]:
    """The jobs of a stream, of which those that are drawn are asynchronous; with a share of 0 the same."""
    drawn = uniform(options.seed, "asynchronous", len(jobs)).tolist()
    stalenesses = uniform(options.seed, "staleness", len(jobs)).tolist()
    law = options.assumed.asynchrony
    return tuple(
        _asynchronous(job, law.staleness[int(len(law.staleness) * v)], stay_s, options) if u < options.asynchronous else job
        for job, stay_s, u, v in zip(jobs, stays_s, drawn, stalenesses, strict=True)
    )


def _asynchronous(job: Job, staleness: int, stay_s: float, options: WorkloadOptions) -> Job:
    job = with_versions(job, staleness, options.assumed.asynchrony)
    return job.model_copy(update=stay(options, stay_s, job.solo_s))


def with_versions(job: Job, staleness: int, law: Asynchrony) -> Job:
    """The job with a staleness, and with the sync of asynchronous jobs."""
    phases_s = job.rollout.worst_case_s + job.training.worst_case_s
    sync_s = model_sync_s(job) if law.model else law.sync * phases_s
    return job.model_copy(update={"staleness": staleness, "sync_s": round(sync_s, 3)})


def with_durations(jobs: Iterable[Job], actual: Actual) -> tuple[Job, ...]:
    """Give both phases of every job a distribution of their actual durations, for event replays."""
    law = {"actual": actual}
    return tuple(job.model_copy(update={side: getattr(job, side).model_copy(update=law) for side in SIDES}) for job in jobs)
