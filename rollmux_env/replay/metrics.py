"""Figures of a whole replay, as docs/reference/metrics.md defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.portable import dot
from rollmux_env.replay.bounds import are_met, bound_completion_h, needs_of
from rollmux_env.replay.completion import Completion, completion_of
from rollmux_env.replay.job_results import JobResult, is_within, iterations_done, job_results
from rollmux_env.replay.run import Run
from rollmux_env.replay.stays import StayTimes, stays_of, stays_s
from rollmux_env.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Figures(Completion):
    """The cost of a replay and the outcome of its jobs as a whole. Where jobs wait, `Completion` has further figures.

    Attributes:
        cost_usd: Integral of the price of all provisioned nodes from the first arrival to the last departure, in $.
        hours: Length of that span, in hours.
        usd_per_hour: cost_usd / hours.
        work_h: Iterations done times T_solo, summed over jobs, in hours.
        usd_per_work_hour: cost_usd / work_h.
        slo_attainment: Share of jobs with slowdown <= slo.
        slo_attainment_observed: The same against a solo run with the same sampled durations; None except in event replays.
        peak_gpus: Largest number of GPUs provisioned at once, by pool.
        admissions: Number of admissions by strategy.
        migrations: Number of moves of running jobs.
        utilization: Node-seconds of running phases over provisioned node-seconds by pool; None if no node was provisioned.
        usd_by_user: Charge of each user's jobs in $, which add up to cost_usd; None if the scenario has no keys of the queue, or
            the policy no groups.
        usd_by_priority: Charge of each priority's jobs in $, which add up to cost_usd; None as for usd_by_user.
        over_budget: Identifiers of the jobs that departed because their budget was exhausted; None if the scenario has no keys of
            the queue.
    """

    cost_usd: float
    hours: float
    usd_per_hour: float
    work_h: float
    usd_per_work_hour: float
    slo_attainment: float
    slo_attainment_observed: float | None = None
    peak_gpus: dict[str, int]
    admissions: dict[str, int]
    migrations: int
    utilization: dict[str, float | None]
    usd_by_user: dict[str, float] | None = None
    usd_by_priority: dict[str, float] | None = None
    over_budget: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values in the order above, without those that are None as a whole."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Metrics(Figures):
    """Figures of a replay, with two further ones by job id.

    Attributes:
        slowdown: (time with a place) / iterations done / T_solo of each job.
        wait_s: Time of each job that waited in the queue, in seconds.
    """

    slowdown: dict[str, float]
    wait_s: dict[str, float]

    @property
    def figures(self) -> Figures:
        """Figures without those of single jobs."""
        return Figures(**{one.name: getattr(self, one.name) for one in fields(Figures)})


def metrics(run: Run) -> Metrics:
    """Measure a finished run.

    Raises:
        InputError: If a stay is too short to be measured at the time of its admission.
    """
    stays = stays_of(run.log)
    jobs = job_results(run.scenario, run.state, stays, run.solo_s)
    return measure(run.scenario, run.state, stays, jobs, run.time_s, run.nodes, run.solo_s)


def measure(
    scenario: Scenario,
    state: State,
    stays: StayTimes,
    jobs: Sequence[JobResult],
    time_s: list[float],
    nodes: Mapping[str, list[int]],
    solo_s: dict[str, float] | None = None,
) -> Metrics:
    """Measure the outcome of a scenario, with or without an event log.

    Args:
        scenario: Scenario that was replayed.
        state: State after the last event. Its job table has each job's iterations and the busy node-seconds of its phases.
        stays: Stays of all jobs.
        jobs: Outcome of each job, from `job_results`.
        time_s: Times at which placements may have changed, as in `Run`.
        nodes: Number of nodes provisioned from each time on by pool, as in `Run`.
        solo_s: Seconds of each job alone, as in `Run`, or None.

    Raises:
        InputError: If a stay is too short to be measured at the time of its admission.
    """
    pools, arrived_s, admitted_s = scenario.cluster.pools, stays.arrived_s, stays.admitted_s
    step_s, stay_s = np.diff(time_s), stays_s(scenario, stays)
    node_s = {name: dot(step_s, nodes[name][:-1]) for name in pools}
    cost_usd = sum(node_s[name] * pool.usd_per_node_hour for name, pool in pools.items()) / 3600
    hours = (time_s[-1] - time_s[0]) / 3600
    done = iterations_done(state)
    slowdown = {job.id: stay_s[job.id] / done[job.id] / job.solo_s for job in scenario.jobs}
    work_h = sum(done[job.id] * job.solo_s for job in scenario.jobs) / 3600
    busy_s = dict(zip(pools, _busy_s(state), strict=True))
    completion = Completion()
    if jobs[0].completion_h is not None:
        makespan_h = (max(stays.departed_s.values()) - min(arrived_s.values())) / 3600
        bound_h = _bound_h(scenario, done, [*stay_s.values()], [*busy_s.values()])
        completion = completion_of(scenario, {job.job: job for job in jobs}, node_s, makespan_h, bound_h)
    nothing = {"rollout": 0} if scenario.cluster.one_device else {}
    measured = Metrics(
        **vars(completion),
        cost_usd=cost_usd,
        hours=hours,
        usd_per_hour=cost_usd / hours,
        work_h=work_h,
        usd_per_work_hour=cost_usd / work_h,
        slo_attainment=_share(scenario, lambda job: is_within(slowdown[job.id], job.slo)),
        slowdown=slowdown,
        wait_s={job_id: admitted_s[job_id] - at for job_id, at in arrived_s.items() if admitted_s[job_id] > at},
        peak_gpus=nothing | {name: max(nodes[name]) * pool.gpus_per_node for name, pool in pools.items()},
        admissions=stays.admissions,
        migrations=sum(stays.moves.values()),
        utilization=dict.fromkeys(nothing) | {name: busy_s[name] / node_s[name] if node_s[name] else None for name in pools},
    )
    if solo_s is not None:
        within = _share(scenario, lambda job: is_within(stay_s[job.id], job.slo * solo_s[job.id]))
        measured = replace(measured, slo_attainment_observed=within)
    if scenario.queue_key is None or not stays.groups:
        return measured
    by_user, by_priority = _usd_by(scenario, state, lambda job: job.user), _usd_by(scenario, state, lambda job: str(job.priority))
    return replace(measured, usd_by_user=by_user, usd_by_priority=by_priority, over_budget=tuple(stays.over_budget))


def _bound_h(scenario: Scenario, done: Mapping[str, float], stays_s: Sequence[float], busy_s: Sequence[float]) -> float | None:
    """Return the bound of the mean completion, or None if it does not hold because jobs needed less than at the worst case."""
    needs = needs_of(scenario, done)
    limits = tuple(inf if pool.max_nodes is None else float(pool.max_nodes) for pool in scenario.cluster.pools.values())
    return bound_completion_h(needs, limits) if are_met(needs, stays_s, busy_s) else None


def _busy_s(state: State) -> list[float]:
    """Return the node-seconds of running phases of each pool."""
    jobs = state.tables.jobs
    sides = ((jobs.rollout_pool, jobs.rollout_busy_s), (jobs.training_pool, jobs.training_busy_s))
    return [
        float(sum(np.where(pools == number, busy_s, 0.0).sum() for pools, busy_s in sides) + before_s)
        for number, before_s in enumerate(state.busy_before_s)
    ]


def _share(scenario: Scenario, within: Callable[[Job], bool]) -> float:
    """Return the share of the jobs for which a condition holds."""
    return sum(map(within, scenario.jobs)) / len(scenario.jobs)


def _usd_by(scenario: Scenario, state: State, key: Callable[[Job], str]) -> dict[str, float]:
    """Return the charge in $ of the jobs with each key, in the order in which the file first has them."""
    usd: dict[str, float] = {}
    for job in scenario.jobs:
        usd[key(job)] = usd.get(key(job), 0.0) + state.charges.usd(state.row(job.id), state.now_s)
    return usd
