"""Syncs on the link that the pools share (`cluster.network`), as they are planned: all running jobs sync at once."""

from __future__ import annotations

from collections.abc import Iterable

from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import TOLERANCE, Records
from rollmux_env.scenario import Job


def rows_of(jobs: Records, row: int) -> list[int]:
    """The row of a job, and those of its shapes."""
    first = int(jobs["first_shape"][row])
    return [*{row, *range(first, first + 1 + int(jobs["more_shapes"][row]))}]


def crosses(jobs: Records, row: int, job: Job) -> bool:
    """Whether a job's sync crosses the link, in one of its shapes at least: on one pool it does not."""
    shapes = jobs[rows_of(jobs, row)]
    return job.sync_s > 0.0 and bool((shapes["rollout_pool"] != shapes["training_pool"]).any())


def write_sync(jobs: Records, row: int, job: Job, seconds: float) -> None:
    """Write what a job's sync takes on the link, and what its iteration takes alone with it, in each of its shapes."""
    for one in rows_of(jobs, row):
        record = jobs[one]
        record["sync_s"] = seconds if record["rollout_pool"] != record["training_pool"] else job.sync_s
        record["alone_s"] = own_period(record["rollout_s"], record["training_s"], record["sync_s"], record["staleness"])


def breaks_alone(jobs: Records, row: int) -> bool:
    """Whether a job would break its SLO on nodes of its own if all jobs synced at once."""
    record = jobs[row]
    return bool(max(record["alone_s"], record["sync_s"]) > record["limit_s"] * (1 + TOLERANCE))


def keeps_all(jobs: Records, groups: Records, rows: Iterable[int]) -> bool:
    """Whether all members of groups keep their SLO, and no job's syncs come faster than they go."""
    for row in rows:
        group = groups[row]
        syncs_s = jobs["placed_sync_s"][group["members"][: group["n_members"]]]
        if group["period_s"] > group["limit_s"] * (1 + TOLERANCE) or syncs_s.max() > group["period_s"] * (1 + TOLERANCE):
            return False
    return True
