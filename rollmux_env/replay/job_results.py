"""Outcome of each job of a replay, as docs/reference/metrics.md defines it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.cluster.state import State
from rollmux_env.replay.completion import JobCompletion, job_completions
from rollmux_env.replay.stays import StayTimes, stays_s
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.ticks import INSTANT_S


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
    stay_s, done = stays_s(scenario, stays), iterations_done(state)
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


def iterations_done(state: State) -> dict[str, float]:
    """Return the iterations of each job, by id. A job that died has several rows in the table."""
    done: dict[str, float] = {}
    for row in range(len(state.tables.models)):
        done[state.tables.job_id(row)] = done.get(state.tables.job_id(row), 0.0) + float(state.tables.jobs.done[row])
    return done
