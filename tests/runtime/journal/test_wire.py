"""Names on the wire: what an older release wrote is read and written again, and a renamed class or field changes none of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import Field, TypeAdapter

from rollmux_env.cluster.events import Event
from rollmux_env.scheduler.facts import Fact as SchedulerFact
from runtime.journal.kinds import KINDS, fields_of, kind_of
from runtime.journal.read import JOURNAL, entries_after, parsed
from runtime.journal.scheduler_kinds import SCHEDULER_KINDS
from runtime.journal.write import _JSON
from runtime.metrics import DEFINITIONS
from runtime.service.http.operations import OPERATIONS
from tests.fixtures import FIXTURES, copied

WIRE = FIXTURES / "wire.json"


def names() -> dict[str, Any]:
    """Return every name that stands in a journal, in a request or on the page of metrics."""
    return {
        "journal": {name: _keys(TypeAdapter(kind).json_schema()) for name, kind in KINDS.items()},
        "told": {name: [*fields_of(kind._make(kind._fields))] for name, kind in SCHEDULER_KINDS.items()},
        "requests": {
            operation.name: [_keys(model.model_json_schema()) for model in (operation.query, operation.body) if model is not None]
            for operation in OPERATIONS
        },
        "metrics": {name: [*definition.tags] for name, definition in DEFINITIONS.items()},
    }


def _keys(schema: dict[str, Any]) -> dict[str, list[str]]:
    """Return the keys of an object, and of all objects in it."""
    return {name: [*part["properties"]] for name, part in {"": schema, **schema.get("$defs", {})}.items() if "properties" in part}


def test_no_name_on_the_wire_changes() -> None:
    found = json.loads(json.dumps(names()))
    assert found == json.loads(WIRE.read_text()), "an older journal, client or dashboard has the old name: keep it as an alias"


def test_every_kind_of_fact_has_a_name() -> None:
    assert {*get_args(Event)} <= {*KINDS.values()}
    assert [*SCHEDULER_KINDS.values()] == [*get_args(SchedulerFact)]


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in FIXTURES.glob(f"*/{JOURNAL}")))
def test_a_fact_of_an_older_release_is_written_as_it_was(folder: str, tmp_path: Path) -> None:
    for _, kind, body in entries_after(copied(folder, tmp_path) / JOURNAL, 0, 2000):
        fact = parsed(kind, body)
        assert kind_of(fact) == kind
        was, written = json.loads(body), json.loads(_JSON.encode(fact))
        assert _as_before(written, was) == was


def _as_before(written: Any, was: Any) -> Any:
    """Return what is written without the fields that are new, also in the facts of an instant."""
    if isinstance(written, dict) and isinstance(was, dict):
        return {name: _as_before(written[name], was[name]) for name in was}
    if isinstance(written, list) and isinstance(was, list) and len(written) == len(was):
        return [_as_before(one, before) for one, before in zip(written, was, strict=True)]
    return written


@dataclass(frozen=True)
class Renamed:
    """A fact whose field has another name in Python than in journals."""

    last_heartbeat_s: Annotated[float, Field(alias="sign_s")]


def test_a_field_that_was_renamed_keeps_its_name_in_journals() -> None:
    assert TypeAdapter(Renamed).validate_json('{"sign_s": 2}') == Renamed(2.0)
    assert fields_of(Renamed(2.0)) == {"sign_s": 2.0}
