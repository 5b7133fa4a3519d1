"""Names of facts in journals, apart from their Python names: a class or a field may be renamed, and old journals are still read."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from rollmux_env.cluster import events
from runtime.journal import facts
from runtime.journal.scheduler_kinds import SCHEDULER_KINDS, hints_of

KINDS: dict[str, type] = {
    "Cancelled": facts.JobCancelled,
    "Offloaded": facts.StateOffloaded,
    "Checkpointed": facts.JobCheckpointed,
    "Absent": facts.CheckpointDelayed,
    "Restarted": facts.JobRestarted,
    "Failed": facts.JobFailed,
    "Attached": facts.OwnerAttached,
    "TakenBack": facts.JobRolledBack,
    "Exceeded": facts.MemoryExceeded,
    "Granted": facts.PhaseGranted,
    "Reported": facts.MetricsReported,
    "LeaseEnded": facts.LeaseEnded,
    "Suspected": facts.NodesSuspected,
    "Freed": facts.NodesFreed,
    "Started": facts.RunStarted,
    "Relaunched": facts.RunRelaunched,
    "Told": facts.SchedulerInformed,
    "Restored": facts.SchedulerRestored,
    "Submitted": facts.JobSubmitted,
    "Profiled": facts.JobProfiled,
    "DrainPlanned": facts.DrainPlanned,
    "Ended": facts.RunEnded,
    "JobCarried": facts.JobCarried,
    "PartBegun": facts.PartBegun,
    "PhaseSlice": facts.PhaseSlice,
    "SyncSlice": facts.SyncSlice,
    "Iteration": facts.IterationSlice,
    "SoloIteration": facts.SoloIterationSlice,
    "Bound": facts.SharingBound,
    "Assigned": facts.Assigned,
    "Returned": facts.Returned,
    "Arrived": events.Arrived,
    "Requeued": events.Requeued,
    "Warm": events.Warm,
    "Admitted": events.Admitted,
    "Begun": events.Begun,
    "Moved": events.Moved,
    "Resumed": events.Resumed,
    "Departed": events.Departed,
    "OverBudget": events.OverBudget,
    "Parked": events.Parked,
    "Withdrawn": events.Withdrawn,
    "Reprofiled": events.Reprofiled,
    "Progressed": events.Progressed,
    "Ticked": events.Ticked,
    "Resized": events.Resized,
    "Lent": events.Lent,
    "QuotaSet": events.QuotaSet,
    "MonthBegun": events.MonthBegun,
    "Carried": events.Carried,
}
_NAMES = {kind: name for kinds in (SCHEDULER_KINDS, KINDS) for name, kind in kinds.items()}


def kind_of(fact: object) -> str:
    """Return the name of a fact's kind in journals."""
    return _NAMES[type(fact)]


def fields_of(fact: Any) -> dict[str, Any]:
    """Return the fields of a fact, or of a record inside one, by their names in journals."""
    kind: Any = type(fact)
    fields: dict[str, Any] = fact._asdict() if hasattr(fact, "_asdict") else vars(fact)
    renamed = _renamed(kind)
    return {renamed.get(name, name): value for name, value in fields.items()} if renamed else fields


@cache
def _renamed(kind: Any) -> dict[str, str]:
    """Return the names in journals of the fields that Python knows by other names."""
    marks = ((name, mark) for name, hint in hints_of(kind).items() for mark in getattr(hint, "__metadata__", ()))
    return {name: mark.alias for name, mark in marks if isinstance(mark, FieldInfo) and mark.alias is not None}
