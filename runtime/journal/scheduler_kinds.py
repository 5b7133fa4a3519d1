"""Names of the scheduler's facts in journals, apart from their Python names, and their parser.

A class may be renamed, and old journals are still read. A field that is renamed keeps its name in journals as
`Annotated[float, Field(alias="...")]`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, create_model

from rollmux_env.scheduler import facts as scheduler_facts
from runtime.machine import Node

SCHEDULER_KINDS: dict[str, type[scheduler_facts.Fact]] = {
    "Arrived": scheduler_facts.Queued,
    "Confined": scheduler_facts.Confined,
    "Alone": scheduler_facts.Alone,
    "Estimated": scheduler_facts.Estimated,
    "Unprofiled": scheduler_facts.Unprofiled,
    "Profiled": scheduler_facts.Profiled,
    "Ready": scheduler_facts.Ready,
    "Threshold": scheduler_facts.Threshold,
    "Shrunk": scheduler_facts.Shrunk,
    "Finished": scheduler_facts.Finished,
    "Continued": scheduler_facts.Continued,
    "Sampled": scheduler_facts.Sampled,
    "Synced": scheduler_facts.Synced,
    "Iterated": scheduler_facts.Iterated,
    "Vacated": scheduler_facts.Vacated,
    "Resumed": scheduler_facts.PauseEnded,
    "Left": scheduler_facts.Left,
    "Yielded": scheduler_facts.YieldedPlace,
    "Failed": scheduler_facts.Failed,
    "Cleared": scheduler_facts.Cleared,
    "Halted": scheduler_facts.Halted,
    "Absent": scheduler_facts.Absent,
    "RequestsWithdrawn": scheduler_facts.RequestsWithdrawn,
    "Lost": scheduler_facts.Lost,
    "Drained": scheduler_facts.Drained,
    "Undrained": scheduler_facts.Undrained,
    "Joined": scheduler_facts.Joined,
    "QuotaChanged": scheduler_facts.QuotaChanged,
    "MonthStarted": scheduler_facts.MonthStarted,
    "Stop": scheduler_facts.Stop,
}


def scheduler_fact_of_json(value: Any) -> scheduler_facts.Fact:
    """Parse a fact of the scheduler from its form in journals.

    Raises:
        ValueError: There is no such fact.
    """
    if not isinstance(value, dict) or value.get("kind") not in SCHEDULER_KINDS:
        raise ValueError("the scheduler can be told no such fact")
    kind = SCHEDULER_KINDS[value["kind"]]
    fields = _fields(value["kind"])(**{name: one for name, one in value.items() if name != "kind"})
    return kind(**{name: getattr(fields, name) for name in kind._fields})


@cache
def _fields(name: str) -> type[BaseModel]:
    """Return a model that validates the fields of a fact of the scheduler. Its nodes are those of the runtime."""
    kind = SCHEDULER_KINDS[name]
    hints = hints_of(kind)
    fields: dict[str, Any] = {one: (hints[one], kind._field_defaults.get(one, ...)) for one in kind._fields}
    return cast("type[BaseModel]", create_model(name, **fields))


def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of a fact's fields by name. Its nodes are those of the runtime."""
    return get_type_hints(kind, localns={"PoolNode": Node, "DispatchPolicy": object}, include_extras=True)
