"""Totals of jobs at the beginnings of calendar months, from which the accounts of each month follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rollmux_env.cluster.demand import demand_of, solo_usd_per_hour

if TYPE_CHECKING:
    from rollmux_env.cluster.state import State


class JobTotals(NamedTuple):
    """Totals of a job since it arrived.

    Attributes:
        node_hours: Nodes that it has been charged for, over time, in node-hours.
        usd: Dollars that it has been charged.
        alone_usd: Dollars that the same phases and syncs would have cost on separate nodes.
        iterations: Iterations that it has done, with fractions in replays.
    """

    node_hours: float
    usd: float
    alone_usd: float
    iterations: float

    def since(self, before: JobTotals) -> JobTotals:
        """Return the difference from earlier totals."""
        return JobTotals(*(now - then for now, then in zip(self, before, strict=True)))


NO_TOTALS = JobTotals(0.0, 0.0, 0.0, 0.0)


class Month(NamedTuple):
    """A calendar month that has begun.

    Attributes:
        name: Year and month, such as `2026-12`.
        before: Totals of each job at its beginning, by id.
    """

    name: str
    before: Mapping[str, JobTotals]


def totals_of_all(state: State) -> dict[str, JobTotals]:
    """Return the totals of all jobs that have arrived, by id."""
    return {job_id: totals_of(state, job_id) for job_id in state.tables.job_rows}


def totals_of(state: State, job_id: str) -> JobTotals:
    """Return the totals of a job that has arrived."""
    row = state.row(job_id)
    alone_usd = _alone_s(state, job_id) * solo_usd_per_hour(state.job(job_id), state.cluster) / 3600
    done = state.iterations_done(job_id)
    return JobTotals(state.charges.node_hours(row, state.now_s), state.charges.usd(row, state.now_s), alone_usd, done)


def _alone_s(state: State, job_id: str) -> float:
    """Return the seconds that a job would have taken alone for what it has run, from the node-seconds of its phases.

    A job whose phases overlap alone takes a part of their sum, as in its profile.
    """
    job, record = state.job(job_id), state.tables.job_records[state.row(job_id)]
    demand = demand_of(job, state.cluster)
    rollout_s = float(record["rollout_busy_s"]) / max(1, demand.rollout_nodes)
    training_s = float(record["training_busy_s"]) / max(1, demand.training_nodes)
    in_turn_s = job.rollout.worst_case_s + job.training.worst_case_s + job.sync_s
    return (rollout_s + training_s + float(record["done"]) * job.sync_s) * job.solo_s / in_turn_s
