"""What a run cost, and its jobs, their users and their priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.keys.queue import queue_key
from rollmux_env.report.lanes import Lane
from runtime.journal.record import RunRecord
from runtime.journal.write import state_of
from runtime.report.measured import mean, solo_seconds


def charged_by(record: RunRecord) -> dict[str, Any]:
    """Dollars by user and by priority, if the run's files say anything of them."""
    specs = [fact.spec for fact in record.submitted]
    if queue_key(record.started.cluster, specs) is None:
        return {}
    state = state_of(record)
    by_user: dict[str, float] = {}
    by_priority: dict[str, float] = {}
    for spec in specs:
        usd = state.charged_usd(spec.id) if state.knows(spec.id) else 0.0
        by_user[spec.user] = by_user.get(spec.user, 0.0) + usd
        by_priority[str(spec.priority)] = by_priority.get(str(spec.priority), 0.0) + usd
    return {"usd_by_user": by_user, "usd_by_priority": by_priority}


def dollars_of(record: RunRecord, job_id: str, charged: Mapping[str, float]) -> dict[str, float | None]:
    """What a job was charged an hour while it had a place, and what nodes of its own would have cost."""
    job = record.jobs.get(job_id)
    solo = solo_usd_per_hour(job, record.started.cluster) if job else None
    return {"usd_per_hour": charged.get(job_id), "usd_per_hour_solo": solo}


def lane_usd(record: RunRecord, lane: Lane) -> float:
    """The price of a node for as long as it was provisioned."""
    return (lane.until_s - lane.from_s) / 3600 * record.started.cluster.pools[lane.owner].usd_per_node_hour


def solo_usd(record: RunRecord) -> float:
    """What all iterations would have cost on nodes of their jobs' own: as they were alone, else by the profiles."""
    usd = 0.0
    for job_id, job in record.jobs.items():
        alone_s = mean(solo_seconds(record, job_id)) or job.solo_s
        usd += len(record.iterations_of(job_id)) * alone_s / 3600 * solo_usd_per_hour(job, record.started.cluster)
    return usd
