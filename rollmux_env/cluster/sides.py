"""The SLO that forbids a candidate: both sides of the comparison, in seconds and in words, and what would satisfy it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.candidates import CandidateTable
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import SLO
from rollmux_env.kernel.promises import SETTLING
from rollmux_env.kernel.tables import COLD, TOLERANCE


class Sides(NamedTuple):
    """The time that a job would need with a candidate, and the time that its SLO allows (`rollmux_env.kernel.promises`).

    Attributes:
        job_id: Id of the job whose SLO it is.
        needs_s: Seconds from its admission to its end, or of one period if the period alone already breaks the SLO.
        allows_s: Allowed value of `needs_s`, seconds.
        words: Explanation of both, and the number of iterations or the SLO that would suffice, all else being equal.
    """

    job_id: str
    needs_s: float
    allows_s: float
    words: str


class _Entry(NamedTuple):
    """Effect of a job's entry on a group.

    Attributes:
        job_row: Row of the entering job.
        period_s: Period of the group after the entry, seconds.
        cold_s: Cold starts that are still to happen then, seconds.
        own_cold_s: Cold start of the entering job, which `cold_s` includes, seconds.
    """

    job_row: int
    period_s: float
    cold_s: float
    own_cold_s: float


def tightest(state: State, table: CandidateTable) -> Sides | None:
    """Return the SLO that forbids the candidate nearest to being allowed in an existing group, or None if no SLO forbids one."""
    closed = (table.reason == SLO) & (table.group >= 0)
    return against(state, table, int(np.argmax(np.where(closed, table.slack, -inf)))) if closed.any() else None


def against(state: State, table: CandidateTable, row: int) -> Sides:
    """Return the SLO that is furthest from allowing a candidate which breaks one.

    Args:
        state: State of the cluster.
        table: Candidates of the job.
        row: Row of the candidate.
    """
    return max(_all(state, table, row), key=lambda one: one.needs_s / one.allows_s if one.allows_s > 0 else inf)


def _all(state: State, table: CandidateTable, row: int) -> Iterator[Sides]:
    job_row, period_s = state.row(table.job_id), float(table.period_s[row])
    number = state.tables.group_rows.get(int(table.group[row]))
    entrant = state.tables.jobs[state.tables.shape_rows(job_row)[int(table.shape[row])]]
    if number is None:  # a new group
        own_cold_s = float(entrant.cold_s)
        yield _side(state, job_row, _Entry(job_row, period_s, own_cold_s, own_cold_s))
        return
    group = state.tables.groups[number]
    warm = entrant.warm_group == group.id and table.new_nodes[row] == 0
    own_cold_s = 0.0 if warm else float(entrant.cold_s)
    for member in [*group.members[: group.n_members].tolist(), job_row]:
        yield _side(state, member, _Entry(job_row, period_s, float(group.coming_cold_s) + own_cold_s, own_cold_s))


def _side(state: State, row: int, entry: _Entry) -> Sides:
    """Compare both sides for one of the jobs that would share the group."""
    job, job_id, period_s = state.tables.jobs[row], state.tables.job_id(row), entry.period_s
    slo, limit_s, enters = state.job(job_id).slo, float(job.limit_s), row == entry.job_row
    most_s, per_cold = (job.enters_limit_s, job.enters_per_cold) if enters else (job.stays_limit_s, job.stays_per_cold)
    limit, least_slo = f"{slo:g} x {limit_s / slo:.4g} s", slo * period_s / limit_s
    over = period_s > limit_s * (1 + TOLERANCE)
    if per_cold == 0.0:
        return Sides(job_id, period_s, limit_s, f"{_iteration(job_id, period_s, limit, limit_s)}; {_would_do(least_slo)}")
    stayed_s = state.now_s - float(job.admitted_s) if state.is_running(job_id) else 0.0
    iterations, warm = None, False
    if job.duration_s < inf:
        rest_s = float(most_s / per_cold)
        needs_s = stayed_s + rest_s
        allows_s = needs_s + limit_s * (rest_s - entry.cold_s) / period_s - limit_s / float(per_cold)
        after = f" after {entry.cold_s:.4g} s of cold starts" if entry.cold_s else ""
        text = f"{job_id} stays {needs_s:.4g} s, and for what it would do at {period_s:.4g} s an iteration{after}"
        text = f"{text} its SLO of {limit} allows {allows_s:.4g} s"
    else:
        settling = SETTLING + float(job.staleness)
        left = 1.0 / float(per_cold) - settling
        needs_s, allows_s = stayed_s + entry.cold_s + (left + settling) * period_s, stayed_s + float(most_s / per_cold)
        parts = [f"{stayed_s:.4g} s so far"] if stayed_s else []
        parts += [f"{entry.cold_s:.4g} s of cold starts"] if entry.cold_s else []
        pace = " + ".join([*parts, f"({left:.4g} + {settling:g}) x {period_s:.4g} s"])
        start_s = allows_s - float(job.iterations) * limit_s  # a job may start cold once, as it does alone
        start = f" and {start_s:.4g} s for its own start" if start_s > limit_s * TOLERANCE else ""
        text = f"{job_id} would take {pace} = {needs_s:.4g} s, and its SLO of {limit} an iteration{start} allows {allows_s:.4g} s"
        if limit_s - period_s > limit_s * TOLERANCE:  # each further iteration gains this difference
            iterations = int(job.iterations) + max(0, ceil((needs_s - allows_s) / (limit_s - period_s) * (1 - TOLERANCE)))
        warm = not over and _fits_warm(state, row, entry, needs_s, allows_s)
    least_slo = max(least_slo, slo * needs_s / allows_s if allows_s > 0 else inf)
    if over:
        return Sides(job_id, period_s, limit_s, f"{_iteration(job_id, period_s, limit, limit_s)}; {_would_do(least_slo)}")
    return Sides(job_id, needs_s, allows_s, f"{text}; {_would_do(least_slo, iterations, warm)}")


def _iteration(job_id: str, period_s: float, limit: str, limit_s: float) -> str:
    return f"an iteration would take {period_s:.4g} s, and the SLO of {job_id} allows {limit} = {limit_s:.4g} s"


def _fits_warm(state: State, row: int, entry: _Entry, needs_s: float, allows_s: float) -> bool:
    """Return whether the SLO would allow the entry if it were warm. The entering job would then get no credit for a cold start."""
    job = state.tables.jobs[row]
    credit_s = 0.0
    if row == entry.job_row and job.warm_group == COLD:
        credit_s = float(state.tables.jobs.cold_s[int(job.first_shape)] * job.limit_s / job.solo_s)
    return entry.own_cold_s > 0.0 and needs_s - entry.own_cold_s <= allows_s - credit_s


def _would_do(slo: float, iterations: int | None = None, warm: bool = False) -> str:
    ways = [f"{iterations} iterations"] if iterations is not None else []
    ways += [f"slo: {ceil(slo * 100 - TOLERANCE) / 100:g}"] if slo < inf else []
    ways += ["a warm entry"] if warm else []
    return f"{' or '.join(ways)} would do" if ways else "no SLO would do"
