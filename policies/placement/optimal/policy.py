"""`optimal` and `optimal-work`: the active jobs are regrouped for free at every event, exactly."""

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
from rollmux_env.replay.metrics import Outcome
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario


class GroupedJobs(FreelyArranged[Grouping]):
    """Running jobs and their best grouping.

    Attributes:
        pool: feasible groups of the running jobs.
        best: the present grouping; column: the column of each running job's row.
        bound_usd: Integral of the groupings' bounds so far, $.
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
        """The best grouping of some jobs."""
        self.pool.hold([self.state.row(job.id) for job in jobs])
        return best_grouping(self.pool, self._objective, self._node_limit, self._before) if jobs else NOTHING

    def take(self, arrangement: Grouping | None) -> None:
        """Group the running jobs so.

        Raises:
            PlanError: there is no grouping.
        """
        if arrangement is None:
            raise PlanError("optimal: the limits leave no grouping of the jobs that already run")
        pool, self.best = self.pool, arrangement
        pool.hold([self.state.row(job.id) for job in self.running])
        columns = arrangement.columns.tolist()
        self.column = {row: column for column in columns for row in pool.rows(column)}
        self._before = [(pool.rows(column), pool.nodes[column]) for column in columns]

    def seconds_of(self, row: int, iterations: float) -> float:
        """So many periods of its group."""
        return iterations * float(self.pool.period_s[self.column[row]])

    def progress(self, seconds: float) -> None:
        """Let every active job do its iterations of so many seconds."""
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
        """How a job comes to its present group, as if it had come last."""
        row = self.state.row(job_id)
        return strategy(self.pool, self.column[row], row)

    def provisioned(self) -> Ints:
        """(P,) nodes of each pool of all groups."""
        nodes = np.zeros(len(self.state.limits.pools), dtype=np.int64)
        np.add.at(nodes, self.pool.pools[self.best.columns], self.pool.nodes[self.best.columns])
        return nodes

    def check(self) -> None:
        """Assert that each active job is in one group, which keeps every SLO, and that the pools have the nodes.

        Raises:
            InvariantError: one of these does not hold.
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
        jobs=tuple(pool.state.tables.job_id(row) for row in rows),
        rollout_nodes=tuple(pins),
        shapes=tuple(int(pool.state.tables.jobs.of_shape[row]) for row in rows),
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


class Optimal:
    """Least $/h (or $ per work-hour) of the active jobs over all partitions into feasible groups.

    For `plan` and `bench` only: it ignores the cost of moving, so no cluster could follow it.

    Jobs that `max_nodes` keeps out wait first come first served: the head of the queue enters as soon as all active jobs and it can
    be grouped within the pools. Of equally good groupings the solver's choice counts, the same for the same file and version.

    Args:
        objective: `usd` minimises $/h, `work` $ per work-hour of the active jobs.
        node_limit: most branch-and-bound nodes of an integer program, None for no limit.
        max_columns: most groups kept. Where either limit bites, bound and gap say how far the grouping can be from the optimum.

    Attributes:
        plans_switches: periods count warm starts, as if no member of a group had a rollout node for itself.
    """

    plans_switches = False

    def __init__(self, objective: Objective = "usd", node_limit: int | None = None, max_columns: int = MAX_COLUMNS) -> None:
        if objective not in get_args(Objective):
            raise InputError(f"objective: must be usd or work, not {objective!r}")
        self.objective: Objective = objective
        self.node_limit = node_limit
        self.max_columns = max_columns

    def plan(self, scenario: Scenario) -> OptimalPlan:
        """Group all jobs of a scenario as if they were there together."""
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
        """The same grouping as decisions: what `rollmux plan` prints."""
        return admission(self.plan(scenario), scenario)

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario: between events each job progresses at 1/period of its present group.

        Regrouping is free and no migration. A job's admission strategy is read off the grouping in which it first runs, as if it
        had come last. `decision_s` has one entry an instant. `extra` holds

        - `grouping_gap`, the share of the cost by which the groupings may exceed the best ones of their instants;
        - `bound_usd` and `gap`, the least dollars of any policy that keeps every SLO on the two pools under strict round robin,
          and the distance of the cost from them, relative; None where nothing proves that (`_is_bound`).

        Args:
            check: assert after every instant that each active job is in one group that keeps all SLOs, and the pools suffice.
        """
        active = self._start(scenario)
        outcome = replay_yardstick(scenario, active, check)
        cost_usd = outcome.metrics.cost_usd
        best_usd = min(active.bound_usd, cost_usd)  # they differ by rounding where all was proven
        gap = _gap(cost_usd, best_usd)
        is_bound = self._is_bound(scenario, outcome)
        extra = {"bound_usd": best_usd if is_bound else None, "gap": gap if is_bound else None, "grouping_gap": gap}
        return replace(outcome, extra=extra)

    def _is_bound(self, scenario: Scenario, outcome: Outcome) -> bool:
        """Return whether the dollars bound those of other policies from below.

        They do where every policy has the same active jobs at every instant: all stays are fixed and no job waits. Dollars per
        work-hour bound nothing, and neither do periods that count a warm start for jobs with a node of their own.
        """
        fixed = all(job.duration_s is not None for job in scenario.jobs)
        return self.objective == "usd" and fixed and not outcome.metrics.wait_s and not self.plans_switches

    def _start(self, scenario: Scenario) -> GroupedJobs:
        name = "optimal" if self.objective == "usd" else "optimal-work"
        refuse_queue_keys(scenario.cluster, scenario.jobs, f"--policy {name}")
        return GroupedJobs(scenario, self.objective, self.node_limit, self.max_columns, self.plans_switches)


def _gap(value: float, bound: float) -> float:
    return max(0.0, (value - bound) / value) if value > 0 else 0.0
