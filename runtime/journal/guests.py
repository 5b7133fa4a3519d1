"""Who was profiled as a guest of a group in a recorded run: from when, with whom, and how it ended.

One batch of guests is there at a time, so those whose times overlap were one. The journal does not say when a batch came: it was
there when its first member asked for a permit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from rollmux_env.scheduler.nodes import LEASE
from runtime.journal.facts import Cancelled, Failed, LeaseEnded, PhaseSlice, Restarted
from runtime.journal.record import RunRecord
from runtime.machine import lacked_core


class Visit(NamedTuple):
    """The time of a job as a guest.

    Attributes:
        from_s: it asked for its first permit. until_s: it was profiled, or nothing was left of it; infinity: the run was over.
        failed_s: its processes or its lease had ended before it was profiled; None: it was.
    """

    job_id: str
    from_s: float
    until_s: float
    failed_s: float | None = None


def visits(record: RunRecord) -> list[Visit]:
    """Those of a run, by the time of their beginning."""
    specs = {fact.spec.id: fact.spec for fact in record.submitted}
    last: dict[str, Visit] = {}
    ordered: list[Visit] = []
    for part in sorted(record.phases, key=lambda part: part.asked_s):
        before = last.get(part.job_id)
        if part.group == LEASE or not part.profile or (before is not None and part.asked_s < before.until_s):
            continue
        visit = _visit(record, part, specs[part.job_id].is_attached)
        last[part.job_id] = visit
        ordered.append(visit)
    return ordered


def batches(ordered: Sequence[Visit]) -> Iterator[list[Visit]]:
    """Visits that were at the same time, together."""
    together: list[Visit] = []
    for visit in ordered:
        if together and visit.from_s >= max(other.until_s for other in together):
            yield together
            together = []
        together.append(visit)
    if together:
        yield together


def _visit(record: RunRecord, first: PhaseSlice, attached: bool) -> Visit:
    """The visit that begins with a phase."""
    job_id, from_s = first.job_id, first.asked_s
    profiled_s = _stated_s(record, job_id, from_s) if attached else _passed_s(record, job_id, from_s)
    lost = (fact for fact in record.leases_ended if not fact.done)
    ends: list[Failed | Cancelled | Restarted | LeaseEnded] = [*record.failed, *record.cancelled, *record.restarted, *lost]
    failed_s = min((fact.at_s for fact in ends if fact.job_id == job_id and fact.at_s >= from_s), default=inf)
    relaunched_s = min((fact.at_s for fact in record.relaunched if fact.at_s >= from_s), default=inf)
    if relaunched_s < min(profiled_s, failed_s):  # whoever goes on knows nothing of it
        return Visit(job_id, from_s, relaunched_s, inf)
    if profiled_s <= failed_s:
        return Visit(job_id, from_s, profiled_s)
    return Visit(job_id, from_s, _cleared_s(record, job_id, failed_s), failed_s)


def _stated_s(record: RunRecord, job_id: str, from_s: float) -> float:
    """When an attached job had done the iterations that are measured."""
    return min((fact.at_s for fact in record.profiled if fact.job.id == job_id and fact.at_s >= from_s), default=inf)


def _passed_s(record: RunRecord, job_id: str, from_s: float) -> float:
    """When the pass of a job was over: with its sync, if it has one. A pass in which a phase had no core is made once more."""
    parts = [part for part in record.phases if part.job_id == job_id and part.profile and part.ok and part.end_s >= from_s]
    trainings_s = sorted(part.end_s for part in parts if part.phase == "training")
    trained_s = next(iter(trainings_s), inf)
    if any(part.end_s <= trained_s and lacked_core(part.core_wait_s, part.done_s - part.run_s) for part in parts):
        trained_s = next(iter(trainings_s[1:]), inf)
    again_s = min((part.asked_s for part in parts if part.asked_s >= trained_s), default=inf)
    syncs = (sync.end_s for sync in record.syncs if sync.job_id == job_id and sync.profile)
    return min((end_s for end_s in syncs if trained_s <= end_s <= again_s), default=trained_s)


def _cleared_s(record: RunRecord, job_id: str, failed_s: float) -> float:
    """When nothing was left of a guest: with the phase that it did not end, or at once; infinity: its nodes were never free."""
    lost = {fact.lease for fact in record.suspected if fact.job_id == job_id and fact.at_s == failed_s}
    freed = (fact.at_s for fact in record.freed if fact.lease in lost)
    freed_s = max(freed, default=inf) if lost else failed_s
    cut = (part.end_s for part in record.phases if part.job_id == job_id and part.profile and not part.ok)
    return min((end_s for end_s in cut if end_s >= freed_s), default=freed_s)


def busy_s(part: PhaseSlice) -> float:
    """Node-seconds in which a phase ran."""
    return sum(span.share * max(0.0, min(span.until_s, part.done_s) - max(span.from_s, part.run_s)) for span in part.node_spans())
