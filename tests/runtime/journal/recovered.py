"""What a recovery knows of a journal, in a form in which two journals can be compared to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel

from runtime.journal.audit import outcomes
from runtime.journal.facts import Fact
from runtime.journal.leases import RecalledLeases
from runtime.journal.record import cold_starts_of
from runtime.journal.replay import assigned_nodes
from runtime.journal.write import record_of, state_of
from runtime.report.usage import Waits, usage_rows
from runtime.service.figures import ends_of


def recovered(facts: Sequence[Fact]) -> dict[str, Any]:
    """Return everything that a run which continues from the facts of a part, or the reports on it, can know."""
    record, leases = record_of(facts), RecalledLeases(facts)
    state, ids = state_of(record), [fact.spec.id for fact in record.submitted]
    waits = Waits(record.first_month, record.log)
    known = {
        "state": state,
        "nodes": assigned_nodes(record, record.nodes.values()),
        "leases": {job_id: leases.last.get(job_id) for job_id in ids},
        "in use": {job_id: leases.are_in_use(job_id) for job_id in ids},
        "counted": {job_id: leases.counted[job_id] for job_id in ids},
        "jobs": [(fact.at_s, fact.spec) for fact in record.submitted],
        "profiles": [(fact.at_s, fact.job, fact.waits) for fact in record.profiled],
        "cold starts": {job_id: cold_starts_of(record).describe(job_id) for job_id in ids},
        "iterations": {job_id: (record.done[job_id], record.most_done(job_id)) for job_id in ids},
        "ends": (outcomes(record)[0], ends_of(record)),
        "facts": (record.started, record.relaunched, record.failed, record.cancelled, record.memory_exceeded),
        "reports": (record.nodes, sorted(record.drained_nodes), record.planned_drains, record.cluster, record.first_month),
        "time": (record.last_s, record.wall_s(record.last_s)),
        "usage": [*usage_rows(state, waits, record.first_month)],
    }
    return {name: plain(value) for name, value in known.items()}


def plain(value: Any) -> Any:
    """Return a value without its objects, so that two of them are equal only if all of their parts are, in the same order."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, BaseModel):
        return value.model_dump()
    return plain(vars(value)) if hasattr(value, "__dict__") else value
