"""Streams of jobs for suites: a workload with a seed, and changes to a stream.

Every `with_...` is a pure function of a scenario. The other functions become streams once all arguments except the seed are bound:
a `functools.partial` of a module's function can be sent to another process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual
from rollmux_env.portable import uniform
from rollmux_env.scenario import Scenario
from rollmux_env.timing.drift import FACTORS, drift
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.draws import with_durations, with_versions
from rollmux_env.workloads.fleets import with_fleet
from rollmux_env.workloads.options import WorkloadOptions

QUICK_JOBS = 50  # number of jobs of a shorter stream
USERS = 10  # number of users of a fleet
ROUNDS = 2  # number of times that a crowd arrives


def workload(name: str, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload by name; `partial(workload, "mixed", stays="fixed")` is a suite's stream.

    Args:
        name: Name of the workload.
        seed: Seed of its draws.
        quick: Whether to build a shorter stream if the options give no number of jobs.
        options: Options of the workload.
    """
    if quick and not name.startswith("micro-"):
        options.setdefault("jobs", QUICK_JOBS)
    return make_workload(name, WorkloadOptions(seed=seed, **options))


def crowd(jobs: int, seed: int, quick: bool = False) -> Scenario:
    """Build a stream of jobs of the mixed profile that arrive and depart together, twice: to warm up, and to be timed.

    Args:
        jobs: Number of jobs that arrive together.
        seed: Seed of the draws.
        quick: Ignored; the stream is always short.
    """
    stream = make_workload("mixed", WorkloadOptions(seed=seed, jobs=ROUNDS * jobs, stays="fixed"))
    stay_s = 3600.0
    together = [
        job.model_copy(update={"arrival_s": 2 * stay_s * (k // jobs), "duration_s": stay_s}) for k, job in enumerate(stream.jobs)
    ]
    return stream.model_copy(update={"jobs": tuple(together)})


def apart(name: str, seconds: float, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload whose jobs arrive at equal intervals, in the file's order.

    Args:
        name: Name of the workload.
        seconds: Interval between two arrivals, in seconds.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        options: Options of the workload.
    """
    stream = workload(name, seed, quick, **options)
    return _with_jobs(stream, (job.model_copy(update={"arrival_s": k * seconds}) for k, job in enumerate(stream.jobs)))


def sampled(name: str, seed: int, quick: bool = False, mean_fraction: float = 0.6, cv: float = 0.25, **options: Any) -> Scenario:
    """Build a workload whose phase durations are sampled in every iteration, as in `with_actual`.

    Args:
        name: Name of the workload.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        mean_fraction: Mean duration before the cap, as a fraction of the worst case.
        cv: Coefficient of variation before the cap.
        options: Options of the workload.
    """
    return with_actual(workload(name, seed, quick, **options), mean_fraction, cv)


def drifting(name: str, template: str, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload whose phases drift over a job's iterations, as in `with_drift`.

    Args:
        name: Name of the workload.
        template: Drift template.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        options: Options of the workload.
    """
    return with_drift(workload(name, seed, quick, **options), template, seed)


def asynchronous(name: str, versions: int, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload whose jobs all have the same staleness. With 0 they are on-policy, but have the same syncs.

    Args:
        name: Name of the workload.
        versions: Staleness of all jobs, in versions.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        options: Options of the workload.
    """
    stream = workload(name, seed, quick, **options)
    law = WorkloadOptions(**options).assumed.asynchrony
    return _with_jobs(stream, (with_versions(job, versions, law) for job in stream.jobs))


def owned(name: str, load: float, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload of ten users on a fleet of a size that the stream is a load for, as in `nodes_at_load`.

    Args:
        name: Name of the workload.
        load: Load, in units of what the jobs need alone.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        options: Options of the workload.
    """
    if quick:
        options["jobs"] = QUICK_JOBS
    stream = workload(name, seed, quick, **options)
    users = [f"user-{int(USERS * u)}" for u in uniform(seed, "users", len(stream.jobs)).tolist()]
    jobs = [job.model_copy(update={"user": user}) for job, user in zip(stream.jobs, users, strict=True)]
    return with_fleet(_with_jobs(stream, jobs), f"load={load}")


def repriced(name: str, times: float, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """Build a workload on a cluster whose training nodes have another price.

    Args:
        name: Name of the workload.
        times: Price over the workload's own.
        seed: Seed of the draws.
        quick: Whether to build a shorter stream.
        options: Options of the workload.
    """
    stream = workload(name, seed, quick, **options)
    training = stream.cluster.pools["training"]
    pool = training.model_copy(update={"usd_per_gpu_hour": times * training.usd_per_gpu_hour})
    cluster = stream.cluster.with_pools({**stream.cluster.pools, "training": pool})
    return Scenario(version=stream.version, cluster=cluster, jobs=stream.jobs)


def with_actual(scenario: Scenario, mean_fraction: float, cv: float) -> Scenario:
    """Give both phases of every job a distribution of actual durations, for event replays.

    Args:
        scenario: Scenario with the jobs.
        mean_fraction: Mean before the cap, as a fraction of the worst case.
        cv: Coefficient of variation before the cap.
    """
    return _with_jobs(scenario, with_durations(scenario.jobs, Actual(mean_fraction=mean_fraction, cv=cv)))


def with_drift(scenario: Scenario, template: str, seed: int) -> Scenario:
    """Let every job draw a drift template for a model of its size, for event replays (RollMux, arXiv 2512.11306, section 6.6).

    A job draws no drift or one of the strengths `rollmux_env.timing.drift.FACTORS`, uniformly; in `mixed` it also draws a direction
    by a fair coin. That both draws are uniform is an assumption: the paper prints only the templates.

    Args:
        scenario: Scenario with the jobs.
        template: One of `rollmux_env.timing.drift.TEMPLATES`, or `mixed`; `none` gives no job a drift.
        seed: Seed of the draws.

    Raises:
        InputError: If the size of a job's model is unknown, or the template is.
    """
    size = len(scenario.jobs)
    strengths = (0.0, *FACTORS)
    drawn = [strengths[int(u * len(strengths))] for u in uniform(seed, "drift", size).tolist()]
    up = ["increasing" if u < 0.5 else "decreasing" for u in uniform(seed, "drift directions", size).tolist()]
    jobs = []
    for job, factor, direction in zip(scenario.jobs, drawn, up, strict=True):
        drifts = drift(direction if template == "mixed" else template, factor or 1.0, _billions(job))
        jobs.append(job.model_copy(update={"drift": drifts if factor else ()}))
    return _with_jobs(scenario, jobs)


def _with_jobs(scenario: Scenario, jobs: Iterable[Job]) -> Scenario:
    return Scenario(version=scenario.version, cluster=scenario.cluster, jobs=tuple(jobs))


def _billions(job: Job) -> int:
    """Return the parameters of a job's model in billions, from an id of the catalogue's types such as `7B-8k-003`."""
    size = re.match(r"([1-9][0-9]*)B-", job.id)
    if size is None:
        raise InputError(f"drift: job {job.id}: the size of its model is not known")
    return int(size[1])
