"""The yardsticks `optimal` and `optimal-work`: an exact optimum that regroups the active jobs at no cost at every event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from policies.placement.optimal.columns import MAX_COLUMNS, ColumnPool
from policies.placement.optimal.grouping import NOTHING, Before, Grouping, Objective, best_grouping
from policies.placement.yardstick import FreelyArranged
from rollmux_env.cluster.demand import demand_of
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.kernel.membership import training_seconds
from rollmux_env.kernel.tables import TOLERANCE, Ints
from rollmux_env.keys.job import Job
from rollmux_env.keys.unsupported import refuse_queue_keys
from rollmux_env.replay.admission import Admission, AdmittedGroup, Decision
from rollmux_env.replay.outcome import Outcome
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario


class GroupedJobs(FreelyArranged[Grouping]):
    """Running jobs and their best grouping.

    Attributes:
        pool: Feasible groups of the running jobs.
        best: Present grouping.
        column: Column of the pool for each running job, by the job's row.
        bound_usd: Integral over time of the groupings' bounds so far, $.
    """

    def __init__(
        self, scenario: Scenario, objective: Objective, node_limit: int | None, max_columns: int, switches: bool = False
    ) -> None:
        super().__init__(State(scenario.cluster, switches=switches))
        self.pool = ColumnPool(self.state, objective == "work", max_columns, reshapes=True)
        self.best = NOTHING
        self.column: dict[int, int] = {}
        self.bound_usd = 0.0
        self._objective: Objective = objective
        self._node_limit = node_limit
        self._before: list[Before] = []

    def arrange(self, jobs: Sequence[Job]) -> Grouping | None:
        """Return the best grouping of some jobs, or None if the limits allow none."""
        self.pool.hold([self.state.row(job.id) for job in jobs])
        return best_grouping(self.pool, self._objective, self._node_limit, self._before) if jobs else NOTHING

    def adopt(self, arrangement: Grouping | None) -> None:
        """Group the running jobs as arranged.

        Raises:
            PlanError: `arrangement` is None.
        """
        if arrangement is None:
            raise PlanError("optimal: the limits leave no grouping of the jobs that already run")
        pool, self.best = self.pool, arrangement
        pool.hold([self.state.row(job.id) for job in self.running])
        columns = arrangement.columns.tolist()
        self.column = {row: column for column in columns for row in pool.rows(column)}
        self._before = [(pool.rows(column), pool.nodes[column]) for column in columns]

    def seconds_of(self, row: int, iterations: float) -> float:
        """Return the seconds of a number of iterations, at the period of the job's group."""
        return iterations * float(self.pool.period_s[self.column[row]])

    def progress(self, seconds: float) -> None:
        """Advance every active job by the iterations that it completes in a number of seconds."""
        self.bound_usd += self.best.bound_usd_per_hour * seconds / 3600
        jobs = self.state.tables.jobs
        for row, column in self.column.items():
            iterations = seconds / float(self.pool.period_s[column])
            training_nodes = int(self.pool.nodes[column, 1])
            shape = self.pool.shape_of(column, row)
            training_s = training_seconds(self.state.view.jobs, shape, training_nodes)
            jobs.done[row] += iterations
            jobs.rollout_busy_s[shape] += iterations * jobs.rollout_s[shape] * jobs.rollout_nodes[shape]
            jobs.training_busy_s[shape] += iterations * training_s * training_nodes

    def strategy(self, job_id: str) -> str:
        """Return the strategy by which a job would have joined its current group, had it come last."""
        row = self.state.row(job_id)
        return strategy(self.pool, self.column[row], row)

    def provisioned(self) -> Ints:
        """Return the nodes of each pool that all groups have together, shape (P,)."""
        nodes = np.zeros(len(self.state.limits.pools), dtype=np.int64)
        np.add.at(nodes, self.pool.pools[self.best.columns], self.pool.nodes[self.best.columns])
        return nodes

    def check(self) -> None:
        """Assert that each active job is in one group, that the groups keep every SLO, and that the pools have enough nodes.

        Raises:
            InvariantError: An invariant does not hold.
        """
        pool, jobs, limits = self.pool, self.state.tables.jobs, self.state.limits
        members = [row for column in self.best.columns.tolist() for row in pool.rows(column)]
        if sorted(members) != pool.active:
            raise InvariantError("R1: the groups do not hold each active job once")
        if (self.provisioned() > limits.pools["nodes_max"]).any():
            raise InvariantError("R5: more nodes than the pools have")
        for row, column in self.column.items():
            if pool.period_s[column] > jobs.limit_s[row] * (1 + TOLERANCE):
                raise InvariantError(f"R6: job {self.state.tables.job_id(row)} breaks its SLO")


@dataclass(frozen=True)
class OptimalGroup:
    """One group of an optimal grouping.

    Attributes:
        jobs: Ids of the members in round-robin order.
        rollout_nodes: Numbers of the rollout nodes to which each member is pinned, from 0 in the group, in the order of `jobs`.
        shapes: Number of each member's shape, in the order of `jobs`.
        training_nodes: Number of the group's training nodes.
        period_s: Exact round-robin period, seconds.
        usd_per_hour: Price of the group's nodes, $/h.
    """

    jobs: tuple[str, ...]
    rollout_nodes: tuple[tuple[int, ...], ...]
    shapes: tuple[int, ...]
    training_nodes: int
    period_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class OptimalPlan:
    """Optimal partition of all jobs of a scenario, as if all were active at the same time.

    Attributes:
        groups: Groups in the order in which their first members arrive.
        queued: Ids of the jobs that `max_nodes` keeps waiting: the first job in order of arrival that does not fit, and all after
            it.
        usd_per_hour: Price of all groups, $/h.
        value: Value of the objective, $/h or $ per work-hour.
        bound: Lower bound of the objective over all groupings.
        gap: (value - bound) / value, 0 if the grouping is proven optimal.
    """

    groups: tuple[OptimalGroup, ...]
    queued: tuple[str, ...]
    usd_per_hour: float
    value: float
    bound: float
    gap: float


def written_out(pool: ColumnPool, column: int) -> OptimalGroup:
    """Convert a column of the pool to a group."""
    rows, pins = pool.realise(column)
    return OptimalGroup(
        jobs=tuple(pool.state.tables.job_id(row) for row in rows),
        rollout_nodes=tuple(pins),
        shapes=tuple(int(pool.state.tables.jobs.of_shape[row]) for row in rows),
        training_nodes=int(pool.nodes[column, 1]),
        period_s=float(pool.period_s[column]),
        usd_per_hour=float(pool.usd_per_hour()[column]),
    )


def strategy(pool: ColumnPool, column: int, row: int) -> str:
    """Return how a member would have joined its group, had it come last: `isolated`, `rollout_scaling` or `direct_packing`."""
    rows, pins = pool.realise(column)
    if len(rows) == 1:
        return "isolated"
    shape = pool.shape_of(column, row)
    others = {node for member, numbers in zip(rows, pins, strict=True) if member != shape for node in numbers}
    own = set(pins[rows.index(shape)]) - others
    return "rollout_scaling" if own else "direct_packing"


def admission(plan: OptimalPlan, scenario: Scenario) -> Admission:
    """Convert a plan to placement decisions in order of arrival.

    The first member of a group counts as isolated and pays for the training nodes. Each member pays for the rollout nodes that no
    earlier member uses.
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


class Optimal:
    """The lowest $/h (or $ per work-hour) of the active jobs over all partitions into feasible groups.

    For `plan` and `bench` only: it ignores the cost of moving jobs, so no cluster could follow it.

    Jobs that `max_nodes` keeps out wait first come, first served. The head of the queue enters as soon as it and all active jobs
    can be grouped within the pools. Among equally good groupings the solver's choice counts, which is the same for the same file
    and version.

    Args:
        objective: `usd` to minimise $/h, `work` to minimise $ per work-hour of the active jobs.
        node_limit: Largest number of branch-and-bound nodes of an integer program, or None for no limit.
        max_columns: Largest number of groups to keep. If this limit or the node limit is reached, bound and gap state how far the
            grouping can be from the optimum.

    Attributes:
        plans_switches: Whether periods count warm starts. They then do so as if no group member had a rollout node for itself.
    """

    plans_switches = False

    def __init__(self, objective: Objective = "usd", node_limit: int | None = None, max_columns: int = MAX_COLUMNS) -> None:
        if objective not in get_args(Objective):
            raise InputError(f"objective: must be usd or work, not {objective!r}")
        self.objective: Objective = objective
        self.node_limit = node_limit
        self.max_columns = max_columns

    def plan(self, scenario: Scenario) -> OptimalPlan:
        """Group all jobs of a scenario as if they were all active at the same time."""
        active = self._start(scenario)
        active.arrive(in_order_of_arrival(scenario), 0.0)
        active.serve(0.0)
        pool, best = active.pool, active.best
        ordered = sorted(best.columns.tolist(), key=lambda column: min(pool.rows(column)))
        return OptimalPlan(
            groups=tuple(written_out(pool, column) for column in ordered),
            queued=tuple(job.id for job in active.waiting),
            usd_per_hour=best.usd_per_hour,
            value=best.value,
            bound=best.bound,
            gap=_gap(best.value, best.bound),
        )

    def admit_all(self, scenario: Scenario) -> Admission:
        """Return the same grouping as decisions, for `rollmux plan`."""
        return admission(self.plan(scenario), scenario)

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario. Between events each job progresses at 1/period of its current group.

        Regrouping is free and counts as no migration. A job's admission strategy follows from the grouping in which it first runs,
        as if it had come last. `decision_s` has one entry for each instant. `extra` holds

        - `grouping_gap`, the share of the cost by which the groupings may exceed the best ones of their instants;
        - `bound_usd`, the lowest dollars of any policy that keeps every SLO on the two pools under strict round robin, or None if
          the replay proves no such bound (`_is_bound`);
        - `gap`, the relative distance of the cost from that bound, or None.

        Args:
            scenario: Scenario to replay.
            check: Whether to assert after every instant that each active job is in one group that keeps all SLOs, and that the
                pools suffice.
        """
        active = self._start(scenario)
        outcome = replay_yardstick(scenario, active, check)
        cost_usd = outcome.metrics.cost_usd
        best_usd = min(active.bound_usd, cost_usd)  # they differ by rounding if every grouping is proven optimal
        gap = _gap(cost_usd, best_usd)
        is_bound = self._is_bound(scenario, outcome)
        extra = {"bound_usd": best_usd if is_bound else None, "gap": gap if is_bound else None, "grouping_gap": gap}
        return replace(outcome, extra=extra)

    def _is_bound(self, scenario: Scenario, outcome: Outcome) -> bool:
        """Return whether the dollars are a lower bound for other policies.

        They are if every policy has the same active jobs at every instant, because all stays are fixed and no job waits. Dollars
        per work-hour bound nothing. Neither do periods that count a warm start even for jobs that share no rollout node.
        """
        fixed = all(job.duration_s is not None for job in scenario.jobs)
        return self.objective == "usd" and fixed and not outcome.metrics.wait_s and not self.plans_switches

    def _start(self, scenario: Scenario) -> GroupedJobs:
        name = "optimal" if self.objective == "usd" else "optimal-work"
        refuse_queue_keys(scenario.cluster, scenario.jobs, f"--policy {name}")
        return GroupedJobs(scenario, self.objective, self.node_limit, self.max_columns, self.plans_switches)


def _gap(value: float, bound: float) -> float:
    return max(0.0, (value - bound) / value) if value > 0 else 0.0
