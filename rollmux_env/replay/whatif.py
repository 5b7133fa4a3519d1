"""The expected course of jobs as things are, and after a change: the figures of `rollmux whatif`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any

from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.replay.job_results import JobResult, is_within
from rollmux_env.replay.stays import stays_of
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.ahead import ahead, simulated
from rollmux_env.scheduler.preview import copy_policy

INSTANTS = 4000  # default number of instants that are simulated


@dataclass(frozen=True)
class JobForecast:
    """The expected course of one job. Times are seconds of the scenario's or the service's clock; None is not known.

    Attributes:
        job: Identifier of the job.
        weight: Weight of the job in mean completions.
        arrived_s: Time of the arrival.
        admitted_s: Time of the first placement from now on; for a running job, the time since which it has had a place.
        departed_s: Time of the departure.
        wait_h: Time without a place until the departure, in hours.
        completion_h: Time from arrival to departure, in hours.
        usd: Charge in $ until the departure; None for a yardstick without groups, too.
        slowdown: (time with a place) / iterations / T_solo.
        slo: Largest acceptable slowdown.
        slo_kept: Whether `slowdown` is at most `slo`.
    """

    job: str
    weight: float
    arrived_s: float
    admitted_s: float | None
    departed_s: float | None
    wait_h: float | None
    completion_h: float | None
    usd: float | None
    slowdown: float | None
    slo: float
    slo_kept: bool | None


@dataclass(frozen=True)
class Projection:
    """The expected course of all jobs.

    Attributes:
        policy: Name and options of the placement policy.
        jobs: Course of each job.
        run: The run of a scenario as in the JSON of `rollmux bench`; otherwise empty.
    """

    policy: str
    jobs: tuple[JobForecast, ...]
    run: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with figures of all jobs whose departure is known."""
        plain = {"policy": self.policy, "figures": figures(self.jobs), "jobs": [asdict(job) for job in self.jobs]}
        return plain | {"run": self.run} if self.run else plain


def figures(jobs: Sequence[JobForecast]) -> dict[str, Any]:
    """Return the figures of jobs as a whole.

    Returns:
        `jobs` and `unknown`, the number of jobs and of those without a known departure; of the others `mean_completion_h`, weighted
        by the jobs' weights, `mean_wait_h`, `usd` and `slo_kept`, the number of kept SLOs. Means of no job are None.
    """
    known = [job for job in jobs if job.completion_h is not None]
    weights, priced = fsum(job.weight for job in known), [job.usd for job in known if job.usd is not None]
    return {
        "jobs": len(jobs),
        "unknown": len(jobs) - len(known),
        "mean_completion_h": fsum(job.weight * (job.completion_h or 0.0) for job in known) / weights if known else None,
        "mean_wait_h": fsum(job.wait_h or 0.0 for job in known) / len(known) if known else None,
        "usd": fsum(priced) if priced else None,
        "slo_kept": sum(job.slo_kept is True for job in known),
    }


@dataclass(frozen=True)
class WhatIf:
    """The answer to a what-if question.

    Attributes:
        target: Scenario, run or service that the question is about.
        changes: Changes in words.
        assumed: Assumptions in words.
        before: Projection without the changes.
        after: Projection with the changes.
    """

    target: str
    changes: tuple[str, ...]
    assumed: tuple[str, ...]
    before: Projection
    after: Projection

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        return {
            "target": self.target,
            "changes": [*self.changes],
            "assumed": [*self.assumed],
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
        }


def forecast_of(result: JobResult, weight: float) -> JobForecast:
    """Return the course of a job in a replay.

    Args:
        result: Outcome of the job.
        weight: Weight of the job.
    """
    return JobForecast(
        job=result.job,
        weight=weight,
        arrived_s=result.arrived_s,
        admitted_s=result.admitted_s,
        departed_s=result.departed_s,
        wait_h=result.queueing_s / 3600 if result.queue_h is None else result.queue_h,
        completion_h=result.completion_s / 3600,
        usd=result.usd,
        slowdown=result.slowdown,
        slo=result.slo,
        slo_kept=result.slo_kept,
    )


@dataclass(frozen=True)
class StateChange:
    """A change of a state.

    Attributes:
        at_s: Present time, in seconds of the state's clock; before it, the state progresses as planned.
        nodes: Number of nodes of each pool from now on; nodes in use stay until their jobs leave. Empty for the present numbers.
        without: Identifiers of jobs that leave now.
        coming: Jobs that arrive, in order of their `arrival_s`.
        replans: Whether the queue is served now, because something else has changed, such as the policy.
    """

    at_s: float = 0.0
    nodes: Mapping[str, int] = field(default_factory=dict)
    without: Collection[str] = ()
    coming: Sequence[Job] = ()
    replans: bool = False


def project(
    state: State, policy: Policy, change: StateChange, instants: int = INSTANTS, stuck: Collection[str] = ()
) -> tuple[JobForecast, ...]:
    """Return the expected course of all present and coming jobs. Placements of waiting jobs are those of their forecasts.

    Args:
        state: State of the cluster, left unchanged.
        policy: Placement policy, left unchanged.
        change: Change at the present time.
        instants: Largest number of instants that are simulated; what happens later is not known.
        stuck: Jobs whose departure is unknown; nothing from there on is known.

    Raises:
        PlanError: If the policy breaks an invariant or cannot be copied.
    """
    scheduler = simulated(state, copy_policy(policy))
    twin, now_s, log = scheduler.state, max(state.now_s, change.at_s), list[Any]()
    running = [job_id for group in twin.group_list() for job_id in group.jobs]
    if change.nodes:
        scheduler.planner.resize(now_s, change.nodes.get("rollout", 0), change.nodes["training"])
    if change.nodes or change.without or change.replans:
        scheduler.planner.wake()
        gone = [facts.Left(job_id) if job_id in running else facts.Failed(job_id) for job_id in change.without]
        log += scheduler.step(now_s, gone).entries
    for entries in ahead(scheduler, instants, stuck, change.coming):
        log += entries
    present = [job_id for job_id in (*running, *state.waiting) if job_id not in change.without]
    stays = stays_of(log)
    admitted_s = {job_id: float(state.tables.jobs.admitted_s[state.row(job_id)]) for job_id in running} | stays.admitted_s
    ids = [*present, *(job.id for job in change.coming if twin.knows(job.id))]
    return tuple(_course(twin, job_id, admitted_s.get(job_id), stays.departed_s.get(job_id)) for job_id in ids)


def _course(state: State, job_id: str, admitted_s: float | None, departed_s: float | None) -> JobForecast:
    """Return the expected course of a job from the state at the end of a simulation."""
    row, job = state.row(job_id), state.job(job_id)
    arrived_s, begun_s = float(state.tables.jobs.arrival_s[row]), float(state.tables.jobs.admitted_s[row])
    done = float(state.tables.jobs.done[row])
    slowdown = (departed_s - begun_s) / done / job.solo_s if departed_s is not None and done else None
    return JobForecast(
        job=job_id,
        weight=job.weight,
        arrived_s=arrived_s,
        admitted_s=admitted_s,
        departed_s=departed_s,
        wait_h=None if admitted_s is None else max(0.0, begun_s - arrived_s) / 3600,  # `begun_s` is later by times without a place
        completion_h=None if departed_s is None else (departed_s - arrived_s) / 3600,
        usd=None if departed_s is None else state.charges.usd(row, departed_s),
        slowdown=slowdown,
        slo=job.slo,
        slo_kept=None if slowdown is None else is_within(slowdown, job.slo),
    )
