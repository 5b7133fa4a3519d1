"""The figures of a run, computed from its record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.cluster.events import Admitted
from rollmux_env.keys.unsupported import queue_key
from rollmux_env.replay.outcome import charged_usd_per_hour
from rollmux_env.report.lanes import POOLS, NodeUse, follow, shares
from runtime.journal.record import RunRecord
from runtime.journal.write import state_of
from runtime.placement_spans import spans_of
from runtime.report.jobs import job_figures, job_ids, mean, solo_seconds, switches
from runtime.report.shared_time import group_figures, shared_times, throughput


def figures(record: RunRecord) -> dict[str, Any]:
    """Return all figures of a run, as `results.json` has them. docs/reference/runs.md defines them. None means not measured."""
    lanes, _ = follow(record.started.cluster, record.log)
    span_s = _span(record)
    charged = charged_usd_per_hour(record.log, state_of(record))
    spans = spans_of(record) if any(job.shapes for job in record.jobs.values()) else {}
    jobs = {job_id: job_figures(record, job_id, spans.get(job_id, ())) for job_id in job_ids(record)}
    return {
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "outcome": record.ended.outcome if record.ended else "killed",
        "seconds": span_s[1],
        "versions": record.started.versions,
        "nodes": [{"name": node.name, "pool": node.pool, "device": node.device} for node in record.started.nodes],
        "jobs": {job_id: job | _dollars_of(record, job_id, charged) for job_id, job in jobs.items()},
        "usd": sum(_lane_usd(record, lane) for lane in lanes),
        "usd_solo": _solo_usd(record),
        "pools": {pool: _pool(record, lanes, pool, span_s) for pool in POOLS},
        "groups": [group_figures(record, lanes, shared) for shared in shared_times(record)],
        "throughput": throughput(record, lanes),
        "switches": {job_id: switches(record, job_id) for job_id in job_ids(record)},
        "permit_ms": _permits_ms(record),
        "syncs": _syncs(record),
        **_charged_by(record),
    }


def _span(record: RunRecord) -> tuple[float, float]:
    """Return the times of the first admission and of the last fact, in seconds."""
    admitted = [event.at_s for event in record.log if isinstance(event, Admitted)]
    last = [record.ended.at_s] if record.ended else [part.end_s for part in record.phases]
    return min(admitted, default=0.0), max([*last, *(event.at_s for event in record.log[-1:])], default=0.0)


def _pool(record: RunRecord, lanes: Sequence[NodeUse], pool: str, span_s: tuple[float, float]) -> dict[str, float] | None:
    """Return the shares of the pool's provisioned node-seconds."""
    split = shares(record.phase_runs(), [lane for lane in lanes if lane.pool == pool], *span_s)
    return split._asdict() if split else None


def _syncs(record: RunRecord) -> dict[str, Any]:
    own = [sync for sync in record.syncs if not sync.profile]
    return {
        "count": len(own),
        "mean_s": mean(sync.end_s - sync.start_s for sync in own),
        "beside_others": sum(bool(sync.sharing_jobs) for sync in own),
    }


def _permits_ms(record: RunRecord) -> dict[str, float] | None:
    """Return percentiles of the time that permits took to reach their phases, in milliseconds."""
    values = [1e3 * part.permit_s for part in record.phases if part.permit_s > 0]
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 99)} if values else None


def _charged_by(record: RunRecord) -> dict[str, Any]:
    """Return the dollars charged by user and by priority, if the run's files use either."""
    specs = [fact.spec for fact in record.submitted]
    if queue_key(record.started.cluster, specs) is None:
        return {}
    state = state_of(record)
    by_user: dict[str, float] = {}
    by_priority: dict[str, float] = {}
    for spec in specs:
        usd = state.charges.usd(state.row(spec.id), state.now_s) if state.knows(spec.id) else 0.0
        by_user[spec.user] = by_user.get(spec.user, 0.0) + usd
        by_priority[str(spec.priority)] = by_priority.get(str(spec.priority), 0.0) + usd
    return {"usd_by_user": by_user, "usd_by_priority": by_priority}


def _dollars_of(record: RunRecord, job_id: str, charged: Mapping[str, float]) -> dict[str, float | None]:
    """Return the mean price at which a job was charged while it was placed, and the price of its solo nodes, in $/h."""
    job = record.jobs.get(job_id)
    solo = solo_usd_per_hour(job, record.started.cluster) if job else None
    return {"usd_per_hour": charged.get(job_id), "usd_per_hour_solo": solo}


def _lane_usd(record: RunRecord, lane: NodeUse) -> float:
    """Return the price of a node for the time in which it was provisioned, in $."""
    return (lane.until_s - lane.from_s) / 3600 * record.started.cluster.pools[lane.owner].usd_per_node_hour


def _solo_usd(record: RunRecord) -> float:
    """Return the price of all iterations on nodes of each job's own, in $: by times measured alone, else by the profiles."""
    usd = 0.0
    for job_id, job in record.jobs.items():
        alone_s = mean(solo_seconds(record, job_id)) or job.solo_s
        usd += len(record.iterations_of(job_id)) * alone_s / 3600 * solo_usd_per_hour(job, record.started.cluster)
    return usd
