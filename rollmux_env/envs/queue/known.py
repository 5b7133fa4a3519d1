"""Tracks of the queue environment: how much of the lengths of jobs an agent knows."""

from __future__ import annotations

from scipy.special import ndtri

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.keys.queue import Estimate, Known
from rollmux_env.portable import exp, uniform
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.order import ORDERS, QueueRules

TRACKS: dict[Known, str] = {"lengths": "area", "estimates": "area", "classes": "learned", "nothing": "gittins"}
"""Order of the queue in each track. It says which jobs are the first, and what each is expected to have left."""

_MOST = 2**31  # largest number of iterations that an estimate may have


def as_known(scenario: Scenario, known: Known, sigma: float, seed: int) -> Scenario:
    """Return a scenario whose jobs say as much about their lengths as a track allows. Estimates of the scenario are left out.

    Args:
        scenario: Scenario with the jobs.
        known: Track. In `estimates`, owners state the iterations times a lognormal error.
        sigma: Standard deviation of the logarithm of that error.
        seed: Seed of the errors.

    Raises:
        InputError: In `classes`, no job has a class.
    """
    if known == "classes" and not any(job.class_name for job in scenario.jobs):
        raise InputError("known: classes: the generator's jobs have none; give it some, as in Workload('production', classes=8)")
    jobs = tuple(job if job.estimate is None else job.model_copy(update={"estimate": None}) for job in scenario.jobs)
    if known == "nothing":
        jobs = tuple(job.model_copy(update={"class_name": ""}) for job in jobs)
    elif known == "estimates":
        errors = exp(sigma * ndtri(uniform(seed, "estimates", len(scenario.jobs)).clip(1e-12))).tolist()
        jobs = tuple(_stated(job, error) for job, error in zip(jobs, errors, strict=True))
    return scenario.model_copy(update={"jobs": jobs})


def _stated(job: Job, error: float) -> Job:
    if job.iterations is None:
        return job
    return job.model_copy(update={"estimate": Estimate(iterations=min(max(1, round(job.iterations * error)), _MOST))})


def rules_for(known: Known, park: bool) -> QueueRules:
    """Return the rules by which the waiting jobs are ordered in a track."""
    name = TRACKS[known]
    return QueueRules(ORDERS[name](), name, backfill=False, park=park)
