"""Syncs on the link that the pools share (`cluster.network`), as they are planned: all running jobs sync at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Records
from rollmux_env.keys.job import Job
from rollmux_env.keys.network import Network, own_rate_gbps
from rollmux_env.network.link import fair_level, slowed_s


class Linked(NamedTuple):
    """Jobs and groups on two pools with a link between them.

    Attributes:
        jobs, groups: their tables. models: the job of each row. network: the link.
    """

    jobs: Records
    groups: Records
    models: Sequence[Job]
    network: Network


def share(
    linked: Linked,
    present: Sequence[int],
    waiting: Iterable[int],
    settle: Callable[[int], None],
    replan: Callable[[int, int], None],
) -> bool:
    """Plan every sync as long as it takes when all running jobs sync at once, and with them the fastest of those that wait, unless
    that would break an SLO.

    Args:
        present: rows of the co-execution groups. waiting: rows of the jobs that wait.
        settle: brings a group up to now, before it changes. replan: tells a group that a member, named first, takes other times.

    Returns:
        Whether that would break one.
    """
    jobs, groups, capacity = linked.jobs, linked.groups, linked.network.link_gbps
    members = [row for group in present for row in groups["members"][group, : groups["n_members"][group]].tolist()]
    running, coming = (
        {row: own_rate_gbps(linked.models[row], linked.network) for row in rows if crosses(linked, row)}
        for rows in (members, waiting)
    )

    def plan(rates: dict[int, float], level: float) -> None:
        for row, rate in rates.items():
            _write_sync(linked, row, slowed_s(linked.models[row].sync_s, rate, level))
            group = int(jobs["group"][row])
            if group != NOWHERE and jobs["placed_sync_s"][row] != jobs["sync_s"][row]:
                settle(group)
                replan(row, group)

    newcomer = [max(coming.values())] if coming else []
    plan(running | coming, fair_level([*running.values(), *newcomer], capacity))
    if not newcomer or _keeps_all(jobs, groups, present):
        return False
    plan(running, fair_level(running.values(), capacity))
    return True


def crosses(linked: Linked, row: int) -> bool:
    """Whether a job's sync crosses the link, in one of its shapes at least: on one pool it does not."""
    shapes = linked.jobs[_rows_of(linked.jobs, row)]
    return linked.models[row].sync_s > 0.0 and bool((shapes["rollout_pool"] != shapes["training_pool"]).any())


def breaks_alone(jobs: Records, row: int) -> bool:
    """Whether a job could break its SLO on nodes of its own if all jobs synced at once: as it is written, or by a sync in one of
    its shapes that takes longer than an iteration may."""
    longest_s = max(jobs["alone_s"][row], jobs["sync_s"][_rows_of(jobs, row)].max())
    return bool(longest_s > jobs["limit_s"][row] * (1 + TOLERANCE))


def _write_sync(linked: Linked, row: int, seconds: float) -> None:
    """Write what a job's sync takes on the link, and what its iteration takes alone with it, in each of its shapes."""
    for one in _rows_of(linked.jobs, row):
        record = linked.jobs[one]
        record["sync_s"] = seconds if record["rollout_pool"] != record["training_pool"] else linked.models[row].sync_s
        record["alone_s"] = linked.models[row].iteration_s(*(float(record[name]) for name in ("rollout_s", "training_s", "sync_s")))


def _rows_of(jobs: Records, row: int) -> list[int]:
    """The row of a job, and those of its shapes."""
    first = int(jobs["first_shape"][row])
    return [*{row, *range(first, first + 1 + int(jobs["more_shapes"][row]))}]


def _keeps_all(jobs: Records, groups: Records, rows: Iterable[int]) -> bool:
    """Whether all members of groups keep their SLO, and no job's syncs come faster than they go."""
    for row in rows:
        group = groups[row]
        syncs_s = jobs["placed_sync_s"][group["members"][: group["n_members"]]]
        if group["period_s"] > group["limit_s"] * (1 + TOLERANCE) or syncs_s.max() > group["period_s"] * (1 + TOLERANCE):
            return False
    return True
