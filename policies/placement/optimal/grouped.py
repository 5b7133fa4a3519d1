"""The active jobs of a replay under free regrouping: their groups and their progress."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.placement.optimal.columns import ColumnPool
from policies.placement.optimal.grouping import Before, Grouping, Objective, best_grouping
from policies.placement.optimal.plan import strategy
from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InvariantError, PlanError
from rollmux_env.kernel.membership import training_seconds
from rollmux_env.kernel.tables import TOLERANCE, Ints
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario


class GroupedJobs:
    """Running jobs, their best grouping, and the queue of jobs that wait because of `max_nodes`.

    Attributes:
        state: it knows the jobs that have arrived, by row, and places none of them: only the columns of its job table that say
            how far a job is are written here, for the metrics.
        pool: feasible groups of the active jobs.
        waiting: ids, in order of arrival.
        best: the present grouping; column: the column of each active row.
        bound_usd: integral of the groupings' bounds so far, $.
    """

    def __init__(
        self, scenario: Scenario, objective: Objective, node_limit: int | None, max_columns: int, switches: bool = False
    ) -> None:
        self.state = State(scenario.cluster, switches=switches)
        self.pool = ColumnPool(self.state, objective == "work", max_columns, reshapes=True)
        self.waiting: list[str] = []
        self.best = Grouping(np.zeros(0, np.int64), 0.0, 0.0, 0.0, 0.0)
        self.column: dict[int, int] = {}
        self.bound_usd = 0.0
        self._objective: Objective = objective
        self._node_limit = node_limit
        self._before: list[Before] = []

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Let jobs join the end of the queue."""
        for job in jobs:
            apply(self.state, Arrived(now_s, job))
            self.waiting.append(job.id)

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Take out the jobs whose stay ends by `until_s`; returns their ids, in order of arrival."""
        jobs = self.state.jobs
        rows = [row for row in self.pool.active if self._departure_s(row, now_s) <= until_s]
        for row in rows:
            if np.isfinite(jobs.iterations[row]):
                jobs.done[row] = jobs.iterations[row]
            self.pool.drop(row)
        return [self.state.job_id(row) for row in rows]

    def serve(self, now_s: float) -> list[str]:
        """Admit from the head of the queue whoever can be grouped with the active jobs, and regroup; returns their ids."""
        rows = [self.state.row(job_id) for job_id in self.waiting]
        for row in rows:
            self.pool.add(row)
        best = self._solve()
        if best is None:  # not all fit
            for row in rows:
                self.pool.drop(row)
            best = self._solve()
            fit = 0
            for row in rows:
                self.pool.add(row)
                more = self._solve()
                if more is None:
                    self.pool.drop(row)
                    break
                best, fit = more, fit + 1
            rows = rows[:fit]
        if best is None:
            raise PlanError("optimal: the limits leave no grouping of the jobs that already run")
        admitted, self.waiting = self.waiting[: len(rows)], self.waiting[len(rows) :]
        for row in rows:
            job = self.state.job(self.state.job_id(row))
            self.state.jobs.admitted_s[row] = now_s
            self.state.jobs.iterations[row] = np.inf if job.iterations is None else job.iterations
            self.state.jobs.leaves_s[row] = np.inf if job.duration_s is None else now_s + job.duration_s
        self.best = best
        self.column = {row: column for column in best.columns.tolist() for row in self.pool.rows(column)}
        self._before = [(self.pool.rows(column), self.pool.nodes[column]) for column in best.columns.tolist()]
        return admitted

    def next_departure_s(self, now_s: float) -> float:
        """When the next active job leaves if nothing changes before; infinite where none runs."""
        return min((self._departure_s(row, now_s) for row in self.pool.active), default=np.inf)

    def progress(self, seconds: float) -> None:
        """Let every active job do its iterations of so many seconds."""
        self.bound_usd += self.best.bound_usd_per_hour * seconds / 3600
        jobs = self.state.jobs
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
        pool, jobs, limits = self.pool, self.state.jobs, self.state.limits
        members = [row for column in self.best.columns.tolist() for row in pool.rows(column)]
        if sorted(members) != pool.active:
            raise InvariantError("R1: the groups do not hold each active job once")
        if (self.provisioned() > limits.pools["nodes_max"]).any():
            raise InvariantError("R5: more nodes than the pools have")
        for row, column in self.column.items():
            if pool.period_s[column] > jobs.limit_s[row] * (1 + TOLERANCE):
                raise InvariantError(f"R6: job {self.state.job_id(row)} breaks its SLO")

    def _solve(self) -> Grouping | None:
        if not self.pool.active:
            return Grouping(np.zeros(0, np.int64), 0.0, 0.0, 0.0, 0.0)
        return best_grouping(self.pool, self._objective, self._node_limit, self._before)

    def _departure_s(self, row: int, now_s: float) -> float:
        jobs = self.state.jobs
        left = jobs.iterations[row] - jobs.done[row]
        return float(min(jobs.leaves_s[row], now_s + left * self.pool.period_s[self.column[row]]))
