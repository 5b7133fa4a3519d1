"""Writes a best grouping as a table: which jobs share which nodes."""

from __future__ import annotations

from dataclasses import dataclass

from policies.placement.optimal.columns import ColumnPool
from rollmux_env.cluster.demand import demand_of
from rollmux_env.replay.admission import Admission, AdmittedGroup, Decision
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Scenario


@dataclass(frozen=True)
class OptimalGroup:
    """One group of a best grouping.

    Attributes:
        jobs: members' ids in round-robin order.
        rollout_nodes: of each member, in that order, the numbers of the rollout nodes that it is pinned to, from 0 in the group.
        shapes: of each member, in that order, the number of its shape.
        training_nodes: size of the training pool.
        period_s: exact round-robin period, seconds.
        usd_per_hour: price of the group's nodes, $/h.
    """

    jobs: tuple[str, ...]
    rollout_nodes: tuple[tuple[int, ...], ...]
    shapes: tuple[int, ...]
    training_nodes: int
    period_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class OptimalPlan:
    """The best partition of all jobs of a scenario that are there together.

    Attributes:
        groups: in the order in which their first members arrive.
        queued: ids of the jobs that `max_nodes` keeps waiting: first come first served, the first that does not fit and all behind.
        usd_per_hour: price of all groups, $/h.
        value: what was minimised: $/h, or $ per work-hour.
        bound: no grouping has less.
        gap: (value - bound) / value; 0 where the grouping is proven optimal.
    """

    groups: tuple[OptimalGroup, ...]
    queued: tuple[str, ...]
    usd_per_hour: float
    value: float
    bound: float
    gap: float


def written_out(pool: ColumnPool, column: int) -> OptimalGroup:
    """A column of the pool as a group."""
    rows, pins = pool.realise(column)
    return OptimalGroup(
        jobs=tuple(pool.state.job_id(row) for row in rows),
        rollout_nodes=tuple(pins),
        shapes=tuple(int(pool.state.jobs.of_shape[row]) for row in rows),
        training_nodes=int(pool.nodes[column, 1]),
        period_s=float(pool.period_s[column]),
        usd_per_hour=float(pool.usd_per_hour()[column]),
    )


def strategy(pool: ColumnPool, column: int, row: int) -> str:
    """How a member came to its group, as if it had come last: `isolated`, `rollout_scaling` or `direct_packing`."""
    rows, pins = pool.realise(column)
    if len(rows) == 1:
        return "isolated"
    shape = pool.shape_of(column, row)
    others = {node for member, numbers in zip(rows, pins, strict=True) if member != shape for node in numbers}
    own = set(pins[rows.index(shape)]) - others
    return "rollout_scaling" if own else "direct_packing"


def admission(plan: OptimalPlan, scenario: Scenario) -> Admission:
    """The decisions that a plan amounts to, read off its groups.

    In order of arrival: the first member of a group is isolated and pays for the training pool, the others pay for the rollout
    nodes that no earlier member has.
    """
    decided: dict[str, Decision] = {}
    jobs = {job.id: job for job in in_order_of_arrival(scenario)}
    for number, group in enumerate(plan.groups):
        demand = demand_of(jobs[group.jobs[0]], scenario.cluster)
        rollout, training = scenario.cluster.pools[demand.rollout_pool], scenario.cluster.pools[demand.training_pool]
        pins = dict(zip(group.jobs, group.rollout_nodes, strict=True))
        shapes = dict(zip(group.jobs, group.shapes, strict=True))
        used: set[int] = set()
        for job_id in (job_id for job_id in jobs if job_id in pins):
            new = len(set(pins[job_id]) - used)
            strategy = "isolated" if not used else "rollout_scaling" if new else "direct_packing"
            delta = new * rollout.usd_per_node_hour + (0 if used else group.training_nodes * training.usd_per_node_hour)
            used |= set(pins[job_id])
            training_nodes = tuple(range(group.training_nodes))
            own = tuple(sorted(pins[job_id]))
            shape = shapes[job_id] if jobs[job_id].shapes else None
            decided[job_id] = Decision(job_id, strategy, number, delta, own, training_nodes, shape=shape)
    groups = tuple(
        AdmittedGroup(n, g.jobs, g.period_s, g.usd_per_hour, {job_id: g.period_s / jobs[job_id].solo_s for job_id in g.jobs})
        for n, g in enumerate(plan.groups)
    )
    decisions = tuple(decided.get(job_id, Decision(job_id, "queued", None, None, (), ())) for job_id in jobs)
    return Admission(decisions, groups, plan.usd_per_hour, {"bound": plan.bound, "gap": plan.gap})
