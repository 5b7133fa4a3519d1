"""Admission alone: the jobs come in order of arrival and nobody leaves (`rollmux plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.facts import Arrived


@dataclass(frozen=True)
class Decision:
    """Where a job was placed.

    Attributes:
        job: its id.
        strategy: `direct_packing`, `rollout_scaling`, `isolated` or `queued`.
        group: id of its group, None where queued.
        delta_usd_per_hour: what it added to the price of the cluster, $/h; None where queued.
        rollout_nodes, training_nodes: numbers of its nodes within the group.
    """

    job: str
    strategy: str
    group: int | None
    delta_usd_per_hour: float | None
    rollout_nodes: tuple[int, ...]
    training_nodes: tuple[int, ...]


@dataclass(frozen=True)
class AdmittedGroup:
    """A co-execution group that the decisions made.

    Attributes:
        id: its number. jobs: members' ids in round-robin order.
        period_s: seconds. usd_per_hour: price of its nodes, $/h.
        slowdown: of each member, period over T_solo.
    """

    id: int
    jobs: tuple[str, ...]
    period_s: float
    usd_per_hour: float
    slowdown: dict[str, float]


@dataclass(frozen=True)
class Admission:
    """All decisions, and the groups that they make.

    Attributes:
        usd_per_hour: price of all nodes, $/h.
        extra: figures that only some policies have, by name.
    """

    decisions: tuple[Decision, ...]
    groups: tuple[AdmittedGroup, ...]
    usd_per_hour: float
    extra: dict[str, float] = field(default_factory=dict)


def admit_all(scenario: Scenario, policy: Policy) -> Admission:
    """Ask a policy about every job in order of arrival; behind a job that does not fit all others are queued too.

    Raises:
        PlanError: the policy broke an invariant.
    """
    state = State(scenario.cluster)
    scheduler = Scheduler(state, policy)
    decisions: list[Decision] = []
    for job in in_order_of_arrival(scenario):
        before = (state.rollout_nodes, state.training_nodes)
        events = scheduler.step(job.arrival_s, [Arrived(job)]).entries
        admitted = next((e for e in events if isinstance(e, Admitted)), None)
        if admitted is None:
            decisions.append(Decision(job.id, "queued", None, None, (), ()))
            continue
        group = state.group_of(job.id)
        strategy = admitted.placement.strategy
        nodes = tuple(range(group.training_nodes))
        delta_usd = (state.rollout_nodes - before[0]) * state.limits.rollout_usd
        delta_usd += (state.training_nodes - before[1]) * state.limits.training_usd
        decisions.append(Decision(job.id, strategy, group.id, delta_usd, state.pins(job.id), nodes))
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
    return Admission(tuple(decisions), groups, state.usd_per_hour)
