"""Seeded random draws of workloads.

Every draw is an inverse distribution function of uniform numbers, with one random stream per purpose. Draws therefore stay the same
across NumPy versions, and an option that changes one purpose does not affect the others.

A job is asynchronous with the probability that the options give. Its staleness is then drawn uniformly from the assumed ones
(`rollmux_env.keys.assumptions`: 1, 2 or 4). An asynchronous job has a sync in addition to its two phases, as in the suite
`asynchrony`: without one, all stalenesses would behave the same if durations do not vary. If its stay is a number of iterations, it
is the number that fits into the drawn stay when the job runs alone, as for any other job.
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
    """Return quantiles of a lognormal distribution, conditioned on being at most `longest`.

    Args:
        u: Uniform numbers in [0, 1), shape (n,).
        mu: Mean of the logarithm.
        sigma: Standard deviation of the logarithm.
        longest: Upper limit.
    """
    share = ndtr((math.log(longest) - mu) / sigma)
    return exp(mu + sigma * ndtri(share * np.maximum(u, 1e-12)))


def burst_arrivals(seed: int, n: int, within: float, apart: float) -> Array:
    """Draw arrival times from 0 on in bursts of 2 to 8 jobs, shape (n,).

    Gaps are exponential. Burst sizes are uniform. Times are scaled so that the last one is the mean gap times n - 1.

    Args:
        seed: Seed of the draws.
        n: Number of jobs.
        within: Mean gap inside a burst, in any unit of time.
        apart: Mean gap between the last job of a burst and the first of the next.
    """
    sizes = 2 + np.floor(7 * uniform(seed, "burst sizes", n)).astype(np.int64)
    first = np.zeros(n + 1, dtype=bool)
    starts = np.cumsum(sizes)
    first[starts[starts <= n]] = True
    gaps = -log1p(-uniform(seed, "gaps", n)) * np.where(first[:n], apart, within)
    return _ending_at(gaps, (n - 1) * (4 * within + apart) / 5)


def gamma_arrivals(seed: int, n: int, mean: float, cv: float) -> Array:
    """Draw arrival times from 0 on with gamma-distributed gaps, shape (n,), scaled to end at mean * (n - 1).

    Args:
        seed: Seed of the draws.
        n: Number of jobs.
        mean: Mean gap, in any unit of time.
        cv: Coefficient of variation of the gaps.
    """
    alpha = cv**-2
    gaps = np.asarray(gammaincinv(alpha, uniform(seed, "gaps", n)), dtype=np.float64) / alpha
    return _ending_at(gaps, (n - 1) * mean)


def at_pace(options: WorkloadOptions, arrivals: Array) -> Array:
    """Return arrivals with the mean gap that the options ask for. Gaps keep their ratios.

    Args:
        options: Options with the mean gap, or without one.
        arrivals: Arrivals in seconds, the first at 0, shape (n,).
    """
    if options.interarrival_s is None or arrivals[-1] == 0:
        return arrivals
    return arrivals * float((len(arrivals) - 1) * options.interarrival_s / arrivals[-1])


def slos(options: WorkloadOptions, n: int, default: tuple[float, float] = (1.0, 2.0)) -> list[float]:
    """Draw SLOs to four decimals, shape (n,).

    Args:
        options: Options with the seed and, possibly, the range of SLOs.
        n: Number of jobs.
        default: Range of the SLOs if the options give none.
    """
    low, high = options.slo or default
    return list(np.round(between(uniform(options.seed, "slos", n), low, high), 4).tolist())


def seconds(values: Array) -> list[float]:
    """Round to the millisecond for readable files, to at least one millisecond."""
    return list(np.maximum(np.round(values, 3), 0.001).tolist())


def times(values: Array) -> list[float]:
    """Round to the millisecond; zero stays zero."""
    return list(np.round(values, 3).tolist())


def stay(options: WorkloadOptions, stay_s: float, solo_s: float) -> dict[str, Any]:
    """Return a job's stay as `duration_s`, or as the `iterations` that fit into it when the job runs alone, at least one.

    Args:
        options: Options with the kind of stay.
        stay_s: Stay in seconds.
        solo_s: Seconds of an iteration of the job alone.
    """
    if options.stays == "fixed":
        return {"duration_s": stay_s}
    return {"iterations": max(1, round(stay_s / solo_s))}


def stays_note(options: WorkloadOptions, stays_s: Sequence[float], jobs: Sequence[Job]) -> str:
    """Return a note on how a trace's stays became iterations, or an empty string if the jobs keep their stays.

    Args:
        options: Options of the workload.
        stays_s: Stay of each job in the trace, in seconds.
        jobs: Jobs in the same order.
    """
    if options.stays == "fixed":
        return ""
    work_h = sum((job.iterations or 0) * job.solo_s for job in jobs) / 3600
    short = sum(stay_s < job.solo_s for stay_s, job in zip(stays_s, jobs, strict=True))
    less = f"; {short:,} are shorter than an iteration and do one" if short else ""
    return f"; stays are rounded to iterations{less}: {work_h:,.1f} h of work of {sum(stays_s) / 3600:,.1f} h in the trace"


def _ending_at(gaps: Array, last: float) -> Array:
    """Return arrivals from gaps, scaled to end at `last`. The first gap is not used."""
    arrivals = np.concatenate(([0.0], np.cumsum(gaps[1:])))
    return arrivals * (last / arrivals[-1]) if len(arrivals) > 1 else arrivals


def with_staleness(jobs: Sequence[Job], stays_s: Sequence[float], options: WorkloadOptions) -> tuple[Job, ...]:
    """Return the jobs of a workload, of which a drawn share is asynchronous. With a share of 0 they are unchanged.

    Args:
        jobs: Synchronous jobs.
        stays_s: Stay of each job, in seconds.
        options: Options with the share and the kind of stay.
    """
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
    """Return the job with a staleness and with the sync that asynchronous jobs have."""
    phases_s = job.rollout.worst_case_s + job.training.worst_case_s
    sync_s = model_sync_s(job) if law.model else law.sync * phases_s
    return job.model_copy(update={"staleness": staleness, "sync_s": round(sync_s, 3)})


def with_durations(jobs: Iterable[Job], actual: Actual) -> tuple[Job, ...]:
    """Return jobs whose phases both have a distribution of actual durations, for event replays."""
    law = {"actual": actual}
    return tuple(job.model_copy(update={side: getattr(job, side).model_copy(update=law) for side in SIDES}) for job in jobs)
