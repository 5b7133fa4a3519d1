"""Checks that detect tampering with a replay: figures that no policy can reach.

An error message begins with the name of its check:

F1  dollars, hours and work are finite and at least 0; shares are from 0 to 1
F2  no pool is in use for longer than its nodes were provisioned
F3  no job does more iterations than its stay has, departs before it is admitted, or is admitted before it arrives
F4  the scenario is the same afterwards
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from rollmux_env.errors import PlanError
from rollmux_env.replay.job_results import JobResult
from rollmux_env.replay.metrics import Metrics
from rollmux_env.replay.outcome import Outcome
from rollmux_env.scenario import Scenario

ROUNDING = 1e-6  # relative tolerance


def check_possible(outcome: Outcome, scenario: Scenario) -> None:
    """Check that a replay's figures are possible.

    Args:
        outcome: Outcome of the replay.
        scenario: Scenario that was replayed.

    Raises:
        PlanError: If a figure is impossible.
    """
    _check_whole(outcome.metrics)
    iterations = {job.id: inf if job.iterations is None else job.iterations for job in scenario.jobs}
    for job in outcome.jobs:
        _check_job(job, iterations[job.job])


@contextmanager
def unwritten(scenario: Scenario, is_shown: bool) -> Iterator[None]:
    """Check that a scenario is the same after a replay, since a policy could write into its jobs.

    Args:
        scenario: Scenario that is replayed.
        is_shown: Whether a user's code sees it.

    Raises:
        PlanError: If the scenario has changed.
    """
    before = scenario.sha256 if is_shown else ""
    yield
    if is_shown and scenario.sha256 != before:
        raise PlanError("F4: it wrote into the jobs or the cluster of the scenario")


def _check_whole(metrics: Metrics) -> None:
    """Check F1 and F2."""
    for name in ("cost_usd", "hours", "usd_per_hour", "work_h", "usd_per_work_hour"):
        value = getattr(metrics, name)
        if not 0 <= value < inf:
            raise PlanError(f"F1: {name} is {value:,.6g}, which cannot be")
    for name in ("slo_attainment", "slo_attainment_observed"):
        share = getattr(metrics, name)
        if share is not None and not 0 <= share <= 1:
            raise PlanError(f"F1: {name} is {share:g}, which cannot be")
    for pool, share in metrics.utilization.items():
        if share is not None and not 0 <= share <= 1 + ROUNDING:
            raise PlanError(f"F2: the nodes of {pool} were in use for {share:.2%} of the time for which they were provisioned")


def _check_job(job: JobResult, iterations: float) -> None:
    """Check F3 for one job."""
    if not 0 <= job.iterations <= iterations * (1 + ROUNDING):
        raise PlanError(f"F3: job {job.job} did {job.iterations:,.6g} iterations, and came for {iterations:,g}")
    if not job.arrived_s - ROUNDING <= job.admitted_s <= job.departed_s:
        times = ", ".join(f"{at:,.6g}" for at in (job.arrived_s, job.admitted_s, job.departed_s))
        raise PlanError(f"F3: job {job.job} arrived, was admitted and left at {times} s, which cannot be")
