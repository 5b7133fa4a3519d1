"""Admission alone: the jobs come in order of arrival and nobody leaves (`rollmux plan`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from rollmux_env.cluster.candidates import REASONS, candidates
from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.plan import Policy, plans_switches
from rollmux_env.cluster.state import State
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Job, Scenario
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
        reason: why it is queued, in words; nothing where it is placed.
    """

    job: str
    strategy: str
    group: int | None
    delta_usd_per_hour: float | None
    rollout_nodes: tuple[int, ...]
    training_nodes: tuple[int, ...]
    reason: str = ""


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
    state = State(scenario.cluster, switches=plans_switches(policy))
    scheduler = Scheduler(state, policy)
    decisions: list[Decision] = []
    for job in in_order_of_arrival(scenario):
        before = (state.rollout_nodes, state.training_nodes)
        scheduler.planner.ticks.next_s = inf  # nobody leaves, and no time passes
        events = scheduler.step(job.arrival_s, [Arrived(job)]).entries
        admitted = next((e for e in events if isinstance(e, Admitted)), None)
        if admitted is None:
            decisions.append(Decision(job.id, "queued", None, None, (), (), _reason(state, job)))
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


def _reason(state: State, job: Job) -> str:
    """Why a job waits that has been queued."""
    if state.waiting[0] != job.id:
        return f"waits behind {state.waiting[0]}; jobs are admitted in order of arrival"
    table = candidates(state, job.id)
    if fitting := int(table.feasible.sum()):
        return f"the policy lets it wait, though {fitting} placement{'s' if fitting > 1 else ''} would fit"
    against = {
        int(group): int(reason) for group, reason in sorted(zip(table.group, table.reason, strict=True))
    }  # the last is nearest
    against.pop(-1)
    counts = Counter(REASONS[reason] for reason in against.values())
    groups = "".join(f"; {count} group{'s' if count > 1 else ''}: {why}" for why, count in counts.items())
    return f"no nodes for a group of its own: it asks for {_wanted(state, job)}{groups}"


def _wanted(state: State, job: Job) -> str:
    """The nodes that a job asks for in each pool, and those that are left."""
    asked = []
    used_nodes = {"rollout": state.rollout_nodes, "training": state.training_nodes}
    for name, pool in state.cluster.pools.items():
        most, used, nodes = pool.max_nodes, used_nodes[name], getattr(job, name).nodes
        asked.append(f"{nodes} {name} node{'s' if nodes > 1 else ''}" + ("" if most is None else f" ({most - used} left)"))
    return " and ".join(asked)
