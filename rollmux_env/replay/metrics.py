"""Metrics of a replay, as defined in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from math import inf
from typing import Any

import numpy as np

from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, OverBudget, Parked
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.portable import dot
from rollmux_env.replay.bounds import are_met, bound_completion_h, needs_of
from rollmux_env.replay.completion import Completion, JobCompletion, Times, completion_of, job_completions
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.packing import packed_beside_idle
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.ticks import INSTANT_S

STRATEGIES = ("direct_packing", "rollout_scaling", "isolated")


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


@dataclass(frozen=True)
class JobResult(JobCompletion):
    """The outcome of one job. Where jobs wait, `JobCompletion` has further figures.

    Attributes:
        job: Identifier of the job.
        arrived_s: Time of the arrival, in seconds of the scenario.
        admitted_s: Time of the admission, in seconds of the scenario.
        departed_s: Time of the departure, in seconds of the scenario.
        queueing_s: Time from arrival to admission, in seconds.
        completion_s: Time from arrival to departure, in seconds.
        iterations: Number of iterations done.
        slo: Largest acceptable slowdown.
        slowdown: (time with a place) / iterations / T_solo; T_solo is at worst case.
        slo_kept: Whether `slowdown` is at most `slo`.
        slowdown_observed: Time with a place over the seconds of the same iterations alone with the same sampled
            durations; None except in event replays.
        slo_kept_observed: Whether `slowdown_observed` is at most `slo`; None except in event replays.
        usd: Charge in $, divided evenly among the members of the job's groups; None for a yardstick without groups.
        usd_alone: Cost in $ of the job's nodes if it ran its iterations alone, at T_solo or, in event replays, at sampled
            durations.
        saving: usd_alone / usd, or None if nothing was charged.
        t_solo_s: T_solo, seconds of an iteration alone at worst case.
        rollout_s: Seconds of the rollout at worst case.
        training_s: Seconds of the training at worst case, on the nodes that the job asks for.
        sync_s: Seconds of the sync.
        rollout_nodes: Number of rollout nodes that the job asks for.
        training_nodes: Number of training nodes that the job asks for.
        user: Name of the job's user, or an empty text.
        priority: Priority in the queue.
        job_class: Label of jobs of similar length, the key `class`, or an empty text.
        group: Number of the group that the job was last in; None for a yardstick without groups.
        moves: Number of times that the job moved while it ran.
    """

    job: str
    arrived_s: float
    admitted_s: float
    departed_s: float
    queueing_s: float
    completion_s: float
    iterations: float
    slo: float
    slowdown: float
    slo_kept: bool
    slowdown_observed: float | None
    slo_kept_observed: bool | None
    usd: float | None
    usd_alone: float
    saving: float | None
    t_solo_s: float
    rollout_s: float
    training_s: float
    sync_s: float
    rollout_nodes: int
    training_nodes: int
    user: str
    priority: int
    job_class: str
    group: int | None
    moves: int

    @property
    def shown_slowdown(self) -> float:
        """Observed slowdown if there is one, else the slowdown."""
        return self.slowdown if self.slowdown_observed is None else self.slowdown_observed

    @property
    def keeps_slo(self) -> bool:
        """Whether the shown slowdown is at most the SLO."""
        return self.slo_kept if self.slo_kept_observed is None else self.slo_kept_observed


@dataclass
class StayTimes:
    """Times and kinds of the admissions and departures of a replay.

    Attributes:
        arrived_s: Time of each job's first arrival, in seconds.
        admitted_s: Time of each job's first admission, in seconds.
        departed_s: Time of each job's last departure, in seconds.
        admissions: Number of admissions by strategy.
        moves: Number of moves of each job that moved while it ran.
        groups: Number of the group that each job was last in.
        over_budget: Identifiers of the jobs that departed because their budget was exhausted.
        parked_s: Time for which each parked job waited for another place, in seconds.
        parks: Number of times that each parked job was parked.
        parked_since_s: Time since which each job that is parked now has had no place, in seconds.
    """

    arrived_s: dict[str, float] = field(default_factory=dict)
    admitted_s: dict[str, float] = field(default_factory=dict)
    departed_s: dict[str, float] = field(default_factory=dict)
    admissions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STRATEGIES, 0))
    moves: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    over_budget: list[str] = field(default_factory=list)
    parked_s: dict[str, float] = field(default_factory=dict)
    parks: dict[str, int] = field(default_factory=dict)
    parked_since_s: dict[str, float] = field(default_factory=dict)
    _new_group: Iterator[int] = field(default_factory=count)  # groups are numbered in the order in which they begin

    def follow(self, event: object) -> None:
        """Take an event; other facts change nothing."""
        if isinstance(event, Admitted | Moved):
            joined = event.placement.group
            self.groups[event.job_id] = next(self._new_group) if joined is None else joined
        match event:
            case Arrived():
                late = event.at_s > event.job.arrival_s + INSTANT_S  # the scheduler was away
                self.arrived_s.setdefault(event.job.id, event.job.arrival_s if late else event.at_s)
            case Admitted(at_s=at_s, job_id=job_id):
                self.admitted_s.setdefault(job_id, at_s)
                self.admissions[event.placement.strategy] += 1
                if job_id in self.parked_since_s:
                    self.parked_s[job_id] = self.parked_s.get(job_id, 0.0) + at_s - self.parked_since_s.pop(job_id)
            case Parked(at_s=at_s, job_id=job_id):
                self.parked_since_s[job_id] = at_s
                self.parks[job_id] = self.parks.get(job_id, 0) + 1
            case Departed(at_s=at_s, job_id=job_id):
                self.departed_s[job_id] = at_s
                if isinstance(event, OverBudget):
                    self.over_budget.append(job_id)
            case Moved(job_id=job_id):
                self.moves[job_id] = self.moves.get(job_id, 0) + 1

    def times(self, job_id: str, until_s: float, work_s: float) -> Times:
        """Return the times of a job that has arrived.

        Args:
            job_id: Identifier of the job.
            until_s: Time of its departure, or the present time, in seconds.
            work_s: Iterations done times T_solo, in seconds.
        """
        away_s = until_s - self.parked_since_s[job_id] if job_id in self.parked_since_s else 0.0
        parked_s, parks = self.parked_s.get(job_id, 0.0) + away_s, self.parks.get(job_id, 0)
        return Times(self.arrived_s[job_id], self.admitted_s.get(job_id, until_s), until_s, parked_s, parks, work_s)

    def placed_s(self, job_id: str) -> float:
        """Return the time from the first admission to the departure of a job, less the time for which it was parked, in seconds."""
        return self.departed_s[job_id] - self.admitted_s[job_id] - self.parked_s.get(job_id, 0.0)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one scenario under one policy, which `bench` tabulates and plots.

    Attributes:
        metrics: Figures that docs/reference/metrics.md defines.
        time_s: Times at which placements may have changed, in seconds, shape (T,).
        nodes: Number of nodes provisioned from each time on by pool, shape (T,) each.
        decision_s: Seconds of computation of each decision.
        extra: Figures that only some policies have, by name, such as a bound and a gap; None for missing ones.
        usd_per_hour: Charge of each job over the hours in which it had a place, in $/h.
        jobs: Outcome of each job, in the scenario's order.
        waiting: Number of jobs in the queue from each time on, shape (T,).
        packed_beside_idle: Number of jobs that were packed into a group and slowed down, although enough nodes were idle for a
            new group.
        phases: All phases, in event replays that keep them.
    """

    metrics: Metrics
    time_s: list[float]
    nodes: dict[str, list[int]]
    decision_s: list[float]
    extra: Mapping[str, float | None] = field(default_factory=dict)
    usd_per_hour: dict[str, float] = field(default_factory=dict)
    jobs: tuple[JobResult, ...] = ()
    waiting: list[int] = field(default_factory=list)
    packed_beside_idle: int = 0
    phases: Sequence[PhaseRun] = ()

    @property
    def mean_slowdown(self) -> float:
        """Mean over jobs of the shown slowdown: as observed if it was observed."""
        return float(np.mean([job.shown_slowdown for job in self.jobs]))


def outcome(run: Run, failures: Failures | None = None) -> Outcome:
    """Return the outcome of a finished replay.

    Args:
        run: Finished replay.
        failures: Failures of the replay, or None.
    """
    extra = run.failures.figures(run.scenario, failures) if run.failures is not None and failures is not None else {}
    if run.penalised_usd_per_hour:
        extra["penalised_usd"] = dot(np.diff(run.time_s), run.penalised_usd_per_hour[:-1]) / 3600
    rates, stays = charged_usd_per_hour(run.log, run.state), stays_of(run.log)
    jobs = job_results(run.scenario, run.state, stays, run.solo_s)
    measured = measure(run.scenario, run.state, stays, jobs, run.time_s, run.nodes, run.solo_s)
    packed = packed_beside_idle(run, {job.job for job in jobs if not is_within(job.slowdown, 1.0)})
    return Outcome(measured, run.time_s, run.nodes, run.decision_s, extra, rates, jobs, run.waiting, packed, run.phases)


def charged_usd_per_hour(log: Iterable[Event], state: State) -> dict[str, float]:
    """Return the charge of each job over the time in which it had a place, in $/h.

    The price of a group is divided evenly among its members.

    Args:
        log: Events in order. Jobs that still have a place after them have it until the state's time.
        state: State after the last event.
    """
    placed_s: dict[str, float] = {}
    since_s: dict[str, float] = {}
    for event in log:
        if isinstance(event, Admitted):
            since_s[event.job_id] = event.at_s
        elif isinstance(event, Departed | Parked) and event.job_id in since_s:
            placed_s[event.job_id] = placed_s.get(event.job_id, 0.0) + event.at_s - since_s.pop(event.job_id)
    for job_id, at_s in since_s.items():
        placed_s[job_id] = placed_s.get(job_id, 0.0) + state.now_s - at_s
    usd = {job_id: state.charges.usd(state.row(job_id), state.now_s) for job_id in placed_s}
    return {job_id: 3600 * usd[job_id] / seconds for job_id, seconds in placed_s.items() if seconds > 0}


def metrics(run: Run) -> Metrics:
    """Measure a finished run.

    Raises:
        InputError: If a stay is too short to be measured at the time of its admission.
    """
    stays = stays_of(run.log)
    jobs = job_results(run.scenario, run.state, stays, run.solo_s)
    return measure(run.scenario, run.state, stays, jobs, run.time_s, run.nodes, run.solo_s)


def stays_of(log: Iterable[Event]) -> StayTimes:
    """Return the times of arrivals, admissions and departures of an event log."""
    stays = StayTimes()
    for event in log:
        stays.follow(event)
    return stays


def job_results(
    scenario: Scenario, state: State, stays: StayTimes, solo_s: Mapping[str, float] | None = None, charged: bool = True
) -> tuple[JobResult, ...]:
    """Return the outcome of each job.

    Args:
        scenario: Scenario that was replayed.
        state: State after the last event, as in `measure`.
        stays: Stays of all jobs.
        solo_s: Seconds of each job alone, as in `Run`, or None.
        charged: Whether the state has the charges of jobs.
    """
    stay_s, done = _stays_s(scenario, stays), _iterations_done(state)
    completions = _completions(scenario, stays, done)
    rows = []
    for job in scenario.jobs:
        arrived_s, admitted_s, departed_s = (at[job.id] for at in (stays.arrived_s, stays.admitted_s, stays.departed_s))
        alone_s = done[job.id] * job.solo_s
        observed_s = None if solo_s is None else solo_s[job.id]
        usd = state.charges.usd(state.row(job.id), state.now_s) if charged else None
        usd_alone = solo_usd_per_hour(job, scenario.cluster) * (alone_s if observed_s is None else observed_s) / 3600
        rows.append(
            JobResult(
                job=job.id,
                arrived_s=arrived_s,
                admitted_s=admitted_s,
                departed_s=departed_s,
                queueing_s=max(0.0, admitted_s - arrived_s),
                completion_s=departed_s - arrived_s,
                iterations=done[job.id],
                slo=job.slo,
                slowdown=stay_s[job.id] / done[job.id] / job.solo_s,
                slo_kept=is_within(stay_s[job.id] / done[job.id] / job.solo_s, job.slo),
                slowdown_observed=None if observed_s is None else stay_s[job.id] / observed_s,
                slo_kept_observed=None if observed_s is None else is_within(stay_s[job.id], job.slo * observed_s),
                usd=usd,
                usd_alone=usd_alone,
                saving=usd_alone / usd if usd else None,
                t_solo_s=job.solo_s,
                rollout_s=job.rollout.worst_case_s,
                training_s=job.training.worst_case_s,
                sync_s=job.sync_s,
                rollout_nodes=job.rollout.nodes,
                training_nodes=job.training.nodes,
                user=job.user,
                priority=job.priority,
                job_class=job.class_name,
                group=stays.groups.get(job.id),
                moves=stays.moves.get(job.id, 0),
                **vars(completions.get(job.id, _NOT_SHOWN)),
            )
        )
    return tuple(rows)


_NOT_SHOWN = JobCompletion()


def _completions(scenario: Scenario, stays: StayTimes, done: Mapping[str, float]) -> dict[str, JobCompletion]:
    """Return the completion of each job by id, or nothing if nodes are unlimited and no job has waited."""
    waited = any(stays.admitted_s[job_id] > at_s + INSTANT_S for job_id, at_s in stays.arrived_s.items())
    if not (waited or stays.parks or any(pool.max_nodes for pool in scenario.cluster.pools.values())):
        return {}
    times = {job.id: stays.times(job.id, stays.departed_s[job.id], done[job.id] * job.solo_s) for job in scenario.jobs}
    return job_completions(scenario, times)


def is_within(value: float, limit: float) -> bool:
    """Return whether a value is at most a limit, apart from rounding."""
    return value <= limit * (1 + 1e-6)


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
    step_s, stay_s = np.diff(time_s), _stays_s(scenario, stays)
    node_s = {name: dot(step_s, nodes[name][:-1]) for name in pools}
    cost_usd = sum(node_s[name] * pool.usd_per_node_hour for name, pool in pools.items()) / 3600
    hours = (time_s[-1] - time_s[0]) / 3600
    done = _iterations_done(state)
    slowdown = {job.id: stay_s[job.id] / done[job.id] / job.solo_s for job in scenario.jobs}
    work_h = sum(done[job.id] * job.solo_s for job in scenario.jobs) / 3600
    busy_s = dict(zip(pools, _busy_s(state), strict=True))
    completion = Completion()
    if jobs[0].completion_h is not None:
        needs = needs_of(scenario, done)
        limits = tuple(inf if pool.max_nodes is None else float(pool.max_nodes) for pool in pools.values())
        is_bound = are_met(needs, [*stay_s.values()], [*busy_s.values()])
        makespan_h = (max(stays.departed_s.values()) - min(arrived_s.values())) / 3600
        bound_h = bound_completion_h(needs, limits) if is_bound else None
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


def _stays_s(scenario: Scenario, stays: StayTimes) -> dict[str, float]:
    """Return the seconds for which each job had a place, by id."""
    stay_s = {job.id: stays.placed_s(job.id) for job in scenario.jobs}
    for job_id, seconds in stay_s.items():
        if seconds <= 0:
            raise InputError(f"job {job_id}: its stay is too short to be measured at {stays.admitted_s[job_id]:g} s")
    return stay_s


def _iterations_done(state: State) -> dict[str, float]:
    """Return the iterations of each job, by id. A job that died has several rows in the table."""
    done: dict[str, float] = {}
    for row in range(len(state.tables.models)):
        done[state.tables.job_id(row)] = done.get(state.tables.job_id(row), 0.0) + float(state.tables.jobs.done[row])
    return done


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
