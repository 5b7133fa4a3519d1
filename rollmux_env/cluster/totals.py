"""Totals of jobs in a state: node-hours, dollars, and dollars that the same work would have cost on separate nodes."""

from __future__ import annotations

from rollmux_env.cluster.charges import EarlierWork
from rollmux_env.cluster.demand import demand_of, solo_usd_per_hour
from rollmux_env.cluster.months import NO_TOTALS, JobTotals
from rollmux_env.cluster.state import State


def totals_of_all(state: State) -> dict[str, JobTotals]:
    """Return the totals of all jobs that have arrived or been profiled, by id."""
    return {job_id: totals_with_lent(state, job_id) for job_id in charged_jobs(state)}


def charged_jobs(state: State) -> list[str]:
    """Return the ids of all jobs that have arrived or been profiled."""
    rows = state.tables.job_rows
    return [*rows, *sorted(state.charges.lent_job_ids() - rows.keys())]


def totals_with_lent(state: State, job_id: str) -> JobTotals:
    """Return the totals of a job that has arrived or been profiled."""
    totals = totals_of(state, job_id) if job_id in state.tables.job_rows else NO_TOTALS
    lent = state.charges.lent_charges(job_id, state.now_s)
    return totals if lent is None else totals.plus(JobTotals(lent.node_s / 3600, lent.usd, lent.usd, 0.0))


def totals_of(state: State, job_id: str) -> JobTotals:
    """Return the totals of a job that has arrived. Nodes that were lent to it after its arrival do not count."""
    row = state.row(job_id)
    return JobTotals(state.charges.node_hours(row, state.now_s), state.charges.usd(row, state.now_s), *work_of(state, job_id))


def work_of(state: State, job_id: str) -> EarlierWork:
    """Return the work of a job since it first arrived."""
    earlier = state.charges.earlier_work(state.row(job_id))
    alone_usd = _alone_s(state, job_id) * solo_usd_per_hour(state.job(job_id), state.cluster) / 3600
    return EarlierWork(earlier.alone_usd + alone_usd, earlier.iterations + state.iterations_done(job_id))


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
