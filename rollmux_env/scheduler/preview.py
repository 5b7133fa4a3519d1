"""Forecasts for a job that would arrive now, and for those that wait, without changing the state.

The expected start of a waiting job is when the fluid replay of the current state, without further arrivals, gives it a place: jobs
take their worst case, and depart when their iterations, their stay or their budget are over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.events import Admitted, Arrived, Departed
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.ahead import INSTANTS, ahead, simulated
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.order import QueueRules, may_be_passed, rules_of
from rollmux_env.scheduler.quotas import Quotas, held_words
from rollmux_env.scheduler.ranking import compute_ranking
from rollmux_env.scheduler.reasons import behind, no_place

NO_WORDS: Mapping[str, str] = MappingProxyType({})
MAX_POLICY_CALLS = 20  # largest number of calls to find the first job that waits for nodes, not for a quota


class WaitForecast(NamedTuple):
    """The forecast for a waiting job.

    Attributes:
        job_id: Identifier of the job.
        position: Position in the queue, from 1.
        eta_s: Expected time of its placement in seconds, or None if unknown.
        reason: Reason why it waits, in words.
    """

    job_id: str
    position: int
    eta_s: float | None
    reason: str


class Outlook(NamedTuple):
    """The expected future of the jobs that wait or run.

    Attributes:
        waiting: Forecasts of the waiting jobs, by id, in the order of the queue.
        done_s: Time at which each job is expected to depart in seconds, by id, as far as it is known.
    """

    waiting: dict[str, WaitForecast]
    done_s: dict[str, float]


@dataclass(frozen=True)
class Preview:
    """The forecast for a job that would arrive now. Values that do not apply are None or empty.

    Attributes:
        fits: Whether it would get a place at once.
        strategy: `direct_packing`, `rollout_scaling` or `isolated`.
        group: Number of its group.
        delta_usd_per_hour: Additional price of all groups, in $/h.
        period_s: Period of its group with the job, in seconds.
        slowdown: Period over T_solo of each member of the group.
        position: Position in the queue, from 1.
        eta_s: Expected time of its placement in seconds; for a job that fits, now.
        done_eta_s: Expected time of its departure in seconds, without further arrivals, or None if unknown.
        reason: Reason why it would wait, in words.
    """

    fits: bool
    strategy: str | None
    group: int | None
    delta_usd_per_hour: float | None
    period_s: float | None
    slowdown: dict[str, float]
    position: int | None
    eta_s: float | None
    done_eta_s: float | None
    reason: str


def forecast_arrivals(
    state: State, policy: Policy, *jobs: Job, instants: int = INSTANTS, stuck: Collection[str] = ()
) -> tuple[Preview, ...]:
    """Return the forecasts for jobs that would arrive now one after the other, each as if those before it had arrived.

    Args:
        state: State of the cluster, left unchanged.
        policy: Placement policy, left unchanged.
        jobs: Jobs whose ids the state does not know.
        instants: Number of instants that are simulated to find their places.
        stuck: Jobs whose departure is unknown.

    Raises:
        PlanError: If the policy breaks an invariant or cannot be copied.
    """
    twin, policy = forecast(state), copy_policy(policy)
    scheduler = Scheduler(twin, policy)
    return tuple(_forecast_arrival(scheduler, policy, job, instants, stuck) for job in jobs)


def _forecast_arrival(scheduler: Scheduler, policy: Policy, job: Job, instants: int, stuck: Collection[str]) -> Preview:
    """Return the forecast for a job after its arrival."""
    state = scheduler.state
    before_usd_per_hour = state.usd_per_hour
    arrived = job.model_copy(update={"arrival_s": state.now_s})
    events = scheduler.step(state.now_s, [facts.Queued(arrived)]).entries
    admitted = next((event for event in events if isinstance(event, Admitted) and event.job_id == job.id), None)
    eta_s, done_s = _simulate_job(simulated(state, copy_policy(policy)), job.id, instants, stuck)
    if admitted is not None:
        group = state.group_of(job.id)
        slowdown = {job_id: group.period_s / state.job(job_id).solo_s for job_id in group.jobs}
        more = state.usd_per_hour - before_usd_per_hour
        return Preview(True, admitted.placement.strategy, group.id, more, group.period_s, slowdown, None, state.now_s, done_s, "")
    words = explain_waits(state, policy)
    position, reason = [*words].index(job.id) + 1, words[job.id]
    return Preview(False, None, None, None, None, {}, position, eta_s, done_s, reason)


def forecast_jobs(
    state: State, policy: Policy, instants: int = INSTANTS, stuck: Collection[str] = (), confined: Mapping[str, str] = NO_WORDS
) -> Outlook:
    """Return the forecasts for all jobs that wait or run, without further arrivals.

    Args:
        state: State of the cluster, left unchanged.
        policy: Placement policy, left unchanged.
        instants: Number of instants that are simulated; what comes later is unknown.
        stuck: Jobs whose departure is unknown; what may depend on one is unknown too.
        confined: Reasons of jobs that may use only some nodes, as in `explain_waits`.

    Raises:
        PlanError: If the policy breaks an invariant or cannot be copied.
    """
    policy = copy_policy(policy)
    words, placed_s, done_s = explain_waits(forecast(state), policy, confined), dict[str, float](), dict[str, float]()
    for entries in ahead(simulated(state, policy), instants, stuck):
        for event in entries:
            if isinstance(event, Admitted):
                placed_s.setdefault(event.job_id, event.at_s)
            elif isinstance(event, Departed):
                done_s[event.job_id] = event.at_s
    queue = (WaitForecast(job_id, place, placed_s.get(job_id), reason) for place, (job_id, reason) in enumerate(words.items(), 1))
    return Outlook({one.job_id: one for one in queue}, done_s)


def copy_policy(policy: Policy) -> Policy:
    """Return a copy of a policy, which will see events that never happen.

    Raises:
        PlanError: If the policy cannot be copied.
    """
    try:
        return deepcopy(policy)
    except Exception as error:  # a user's class may raise anything
        raise PlanError(f"the policy cannot be copied: {type(error).__name__}") from None


def _simulate_job(scheduler: Scheduler, job_id: str, instants: int, stuck: Collection[str]) -> tuple[float | None, float | None]:
    """Return the times at which a job gets its next place and departs, each None if unknown, by simulating the state."""
    placed_s: float | None = None
    for entries in ahead(scheduler, instants, stuck):
        for event in entries:
            if isinstance(event, Admitted | Departed) and event.job_id == job_id:
                if isinstance(event, Departed):
                    return placed_s, event.at_s
                placed_s = event.at_s if placed_s is None else placed_s
    return placed_s, None


def explain_waits(state: State, policy: Policy, confined: Mapping[str, str] = NO_WORDS) -> dict[str, str]:
    """Return the reason why each waiting job waits, by id in the order in which they are served.

    Args:
        state: State of the cluster, left unchanged.
        policy: Placement policy, which is asked if quotas may pass jobs over.
        confined: Reasons why jobs have no place that may use only some nodes, by id. The state does not say which nodes these are.
    """
    rules = rules_of(policy)
    words: dict[str, str] = {}
    quotas, head = Quotas(state), ""
    queue, keys = compute_ranking(state, rules)
    for job_id in queue:
        if head:
            why = behind(state, head, "" if rules is None else _compare_keys(state, rules, keys, head, job_id))
        elif quota := _quota_reason(state, job_id, quotas, policy if len(words) < MAX_POLICY_CALLS else None, queue):
            why = quota
        else:
            why = confined.get(job_id) or no_place(state, job_id, bool(getattr(policy, "prune", False)))
            if rules is None or not may_be_passed(state, rules, job_id):
                head = job_id
        parked = state.stays.parked.get(job_id)
        words[job_id] = why if parked is None else f"parked{parked.words}; {why}"
    return words


def _quota_reason(state: State, job_id: str, quotas: Quotas, policy: Policy | None, queue: Sequence[str]) -> str:
    """Return a text that a quota keeps the job waiting, or an empty text if none does.

    Args:
        state: State of the cluster.
        job_id: Identifier of the job.
        quotas: Quotas of the users.
        policy: Policy that chooses the job's place, or None to check only the job's own needs.
        queue: Identifiers of the waiting jobs in order.
    """
    job = state.job(job_id)
    if quotas.bars(job):
        return held_words(state, job)
    if policy is None or state.cluster.quota_of(job.user) is None:
        return ""
    if job.user not in quotas.broken(ask(policy, state, Arrived(state.now_s, job)), policy, queue):
        return ""
    return f"{held_words(state, job)}, and its place would take it above"


def _compare_keys(state: State, rules: QueueRules, keys: Mapping[str, float], head: str, job_id: str) -> str:
    """Return a text with the keys of a job and of the job before it, or an empty text if the keys do not decide their order."""
    first, own = keys[head], keys[job_id]
    if own == first or state.job(head).priority != state.job(job_id).priority:
        return ""
    unit = rules.unit and f" {rules.unit}"
    return f" by {rules.name} ({rules.shown(own, state):.4g}{unit} against {rules.shown(first, state):.4g})"
