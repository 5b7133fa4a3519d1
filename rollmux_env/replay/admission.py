"""Admission alone (`rollmux plan`): the jobs arrive in order, and no job departs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from rollmux_env.cluster.demand import demand_of, usd_per_hour
from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.replay.run import in_order_of_arrival, initial_state
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.facts import Queued
from rollmux_env.scheduler.preview import explain_waits
from rollmux_env.scheduler.ticks import INSTANT_S


@dataclass(frozen=True)
class Decision:
    """The placement of a job.

    Attributes:
        job: Identifier of the job.
        strategy: `direct_packing`, `rollout_scaling`, `isolated` or `queued`.
        group: Identifier of its group, or None if it is queued.
        delta_usd_per_hour: Price in $/h that it added to the cluster, or None if it is queued.
        rollout_nodes: Numbers of its rollout nodes within the group.
        training_nodes: Numbers of its training nodes within the group.
        reason: Reason why it is queued, or has a group for itself although there are others; otherwise empty.
        shape: Number of the shape in which a placed job runs, or None if it has no shapes.
    """

    job: str
    strategy: str
    group: int | None
    delta_usd_per_hour: float | None
    rollout_nodes: tuple[int, ...]
    training_nodes: tuple[int, ...]
    reason: str = ""
    shape: int | None = None


@dataclass(frozen=True)
class AdmittedGroup:
    """A co-execution group that results from the decisions.

    Attributes:
        id: Number of the group.
        jobs: Identifiers of the members in round-robin order.
        period_s: Period, in seconds.
        usd_per_hour: Price of its nodes, in $/h.
        slowdown: Period over T_solo of each member.
    """

    id: int
    jobs: tuple[str, ...]
    period_s: float
    usd_per_hour: float
    slowdown: dict[str, float]


@dataclass(frozen=True)
class Admission:
    """All decisions, and the groups that result from them.

    Attributes:
        decisions: Decisions in order of arrival.
        groups: Groups after the last decision.
        usd_per_hour: Price of all nodes, in $/h.
        extra: Figures that only some policies have, by name.
    """

    decisions: tuple[Decision, ...]
    groups: tuple[AdmittedGroup, ...]
    usd_per_hour: float
    extra: dict[str, float] = field(default_factory=dict)


def admit_all(scenario: Scenario, policy: Policy) -> Admission:
    """Ask a policy about every job in order of arrival. With rules of the queue, jobs that arrive together are asked about by them.

    Behind a queued job, other jobs of at most the same priority are queued too, unless the rules say otherwise.

    Args:
        scenario: Scenario with the jobs.
        policy: Placement policy.

    Raises:
        PlanError: If the policy broke an invariant.
    """
    state = initial_state(scenario.cluster, policy)
    scheduler = Scheduler(state, policy)
    why = scheduler.server.why = {}
    decisions: dict[str, Decision] = {}
    for jobs in _rounds(scenario, together=scheduler.planner.rules is not None):
        before = state.nodes.copy()
        scheduler.planner.ticks.next_s = inf  # no job departs and no time passes, so the policy's timer never fires
        events = scheduler.step(jobs[0].arrival_s, map(Queued, jobs)).entries
        delta_usd = float(((state.nodes - before).sum(axis=1) * state.limits.pools["usd"]).sum())
        decisions |= {job.id: Decision(job.id, "queued", None, None, (), ()) for job in jobs}
        admitted = [event for event in events if isinstance(event, Admitted)]
        for event in reversed(admitted):  # the nodes of moves count to the first
            own_usd = delta_usd if event is admitted[0] else _usd(state, event)
            delta_usd -= own_usd
            decisions[event.job_id] = Decision(event.job_id, event.placement.strategy, None, own_usd, (), ())
    waiting = explain_waits(state, policy)
    groups = tuple(
        AdmittedGroup(
            group.id,
            group.jobs,
            group.period_s,
            group.usd_per_hour,
            {job_id: group.period_s / state.job(job_id).solo_s for job_id in group.jobs},
        )
        for group in state.group_list()
    )
    return Admission(tuple(_final(state, one, waiting, why) for one in decisions.values()), groups, state.usd_per_hour)


def _rounds(scenario: Scenario, together: bool) -> list[list[Job]]:
    """Return the jobs in order of arrival, those of an instant together or each alone."""
    jobs = in_order_of_arrival(scenario)
    rounds: list[list[Job]] = []
    for job in jobs:
        if together and rounds and job.arrival_s <= rounds[-1][0].arrival_s + INSTANT_S:
            rounds[-1].append(job)
        else:
            rounds.append([job])
    return rounds


def _final(state: State, decision: Decision, waiting: Mapping[str, str], why: Mapping[str, str]) -> Decision:
    """Return a decision with the place that the job has after all decisions: it may have been moved or parked since."""
    job_id = decision.job
    if job_id in waiting:
        return Decision(job_id, "queued", None, None, (), (), waiting[job_id])
    group = state.group_of(job_id)
    return replace(
        decision,
        group=group.id,
        rollout_nodes=state.pins(job_id),
        training_nodes=tuple(range(group.training_nodes)),
        reason=why.get(job_id, ""),
        shape=state.shape(job_id) if state.job(job_id).shapes else None,
    )


def _usd(state: State, event: Admitted) -> float:
    """Return the price of the nodes that an admission adds, in $/h."""
    place = event.placement
    demand = demand_of(state.job(event.job_id), state.cluster, place.shape)
    return usd_per_hour(demand, state.cluster, place.new_rollout_nodes, place.training_nodes)
