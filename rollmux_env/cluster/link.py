"""Planned duration of syncs on the link between the pools (`cluster.network`), if all running jobs sync at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Records
from rollmux_env.network.link import fair_level, slowed_s


def share(state: State, settle: Callable[[State, int], None], replan: Callable[[State, int, int], None]) -> bool:
    """Plan the duration of every sync for the case that all running jobs sync at the same time.

    The plan includes the fastest sync of the waiting jobs, unless this would break an SLO.

    Args:
        state: State to change.
        settle: Function that updates the progress of a group to now, before the group changes; it gets the state and group.
        replan: Function that updates a group after the times of a member have changed; it gets the state, member and group.

    Returns:
        Whether the sync of a waiting job would break an SLO, for `State.link_is_full`.
    """
    tables, network = state.tables, state.cluster.network
    assert network is not None
    jobs, groups = tables.job_records, tables.group_records
    present = tables.order[groups["exclusive"][tables.order] == 0].tolist()
    running, coming = (
        {row: network.own_rate_gbps(tables.models[row].sync_s, tables.models[row].sync_gb) for row in rows if _crosses(state, row)}
        for rows in ([row for group in present for row in tables.members(group)], map(state.row, state.waiting))
    )

    def plan(rates: dict[int, float], level: float) -> None:
        for row, rate in rates.items():
            _write_sync(state, row, slowed_s(tables.models[row].sync_s, rate, level))
            group = int(jobs["group"][row])
            if group != NOWHERE and jobs["placed_sync_s"][row] != jobs["sync_s"][row]:
                settle(state, group)
                replan(state, row, group)

    newcomer = [max(coming.values())] if coming else []
    plan(running | coming, fair_level([*running.values(), *newcomer], network.link_gbps))
    if not newcomer or _keeps_all(jobs, groups, present):
        return False
    plan(running, fair_level(running.values(), network.link_gbps))
    return True


def waits_for_link(state: State, job_id: str) -> bool:
    """Return whether a job could break its SLO, or that of another job, if all jobs including it synced at the same time."""
    if state.cluster.network is None:
        return False
    row = state.row(job_id)
    return _crosses(state, row) and (state.link_is_full or _breaks_alone(state, row))


def _crosses(state: State, row: int) -> bool:
    """Return whether a job's sync crosses the link in at least one shape. With both phases on one pool it does not."""
    shapes = state.tables.job_records[_rows_of(state, row)]
    return state.tables.models[row].sync_s > 0.0 and bool((shapes["rollout_pool"] != shapes["training_pool"]).any())


def _breaks_alone(state: State, row: int) -> bool:
    """Return whether a job could break its SLO because of syncs on the link, even without sharing nodes.

    It does if its iteration in shape 0, or its sync in any shape, takes longer than an iteration may.
    """
    jobs = state.tables.job_records
    longest_s = max(jobs["alone_s"][row], jobs["sync_s"][_rows_of(state, row)].max())
    return bool(longest_s > jobs["limit_s"][row] * (1 + TOLERANCE))


def _write_sync(state: State, row: int, seconds: float) -> None:
    """Write the duration of a job's sync on the link and of its iteration alone, for each of its shapes."""
    job = state.tables.models[row]
    for one in _rows_of(state, row):
        record = state.tables.job_records[one]
        record["sync_s"] = seconds if record["rollout_pool"] != record["training_pool"] else job.sync_s
        record["alone_s"] = job.iteration_s(*(float(record[name]) for name in ("rollout_s", "training_s", "sync_s")))


def _rows_of(state: State, row: int) -> list[int]:
    """Return the row of a job and the rows of its shapes."""
    return [*{row, *state.tables.shape_rows(row)}]


def _keeps_all(jobs: Records, groups: Records, rows: Iterable[int]) -> bool:
    """Return whether all members of the groups keep their SLOs, and no job starts a sync before the last one has ended."""
    for row in rows:
        group = groups[row]
        syncs_s = jobs["placed_sync_s"][group["members"][: group["n_members"]]]
        if group["period_s"] > group["limit_s"] * (1 + TOLERANCE) or syncs_s.max() > group["period_s"] * (1 + TOLERANCE):
            return False
    return True
