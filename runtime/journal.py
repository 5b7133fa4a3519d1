"""The journal of a run: its facts, in SQLite, written as they happen. Replaying its events gives the state.

What is acted on must not be forgotten: admissions, moves and everything else that concerns placements is on the disk before the run
goes on. Phases and iterations are written in batches.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from rollmux_env.cluster.events import Event, Progressed, Ticked
from rollmux_env.cluster.state import State, apply
from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError
from runtime.jobs.spec import JobSpec
from runtime.record import (
    Assigned,
    Bound,
    Cancelled,
    Ended,
    Fact,
    Failed,
    Iteration,
    PhaseSlice,
    Profiled,
    Returned,
    RunRecord,
    Started,
    Submitted,
    SyncSlice,
)

JOURNAL = "journal.sqlite"
SCHEMA = 1
_BATCHED = (PhaseSlice, SyncSlice, Iteration, Progressed, Ticked)
_BATCH = 32  # facts; more of the batched kinds are never lost
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Fact)) if isinstance(kind, type)}
_FIELDS: dict[type, str] = {
    Submitted: "submitted",
    Cancelled: "cancelled",
    Profiled: "profiled",
    Bound: "bounds",
    Assigned: "assigned",
    Returned: "returned",
    PhaseSlice: "phases",
    SyncSlice: "syncs",
    Iteration: "iterations",
    Failed: "failed",
}


class Journal:
    """Writes the facts of one run.

    Args:
        path: a new file.

    Raises:
        InputError: there is a journal already, or it cannot be written; one line.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise InputError(f"{one_line(str(path), 4096)}: is the journal of a run already; choose another folder")
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)")
            self._database.execute(f"PRAGMA user_version={SCHEMA}")
        except sqlite3.Error as error:
            raise InputError(f"{one_line(str(path), 4096)}: cannot be written: {error}") from None
        self._unwritten: list[tuple[str, str]] = []

    def write(self, *facts: Fact) -> None:
        """Take facts; on return all are on the disk, unless each is of a kind that may wait for others."""
        self._unwritten += [(type(fact).__name__, json.dumps(_plain(fact), separators=(",", ":"))) for fact in facts]
        if len(self._unwritten) >= _BATCH or not all(isinstance(fact, _BATCHED) for fact in facts):
            self.flush()

    def flush(self) -> None:
        """Bring everything to the disk."""
        if self._unwritten:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO facts (kind, body) VALUES (?, ?)", self._unwritten)
            self._database.execute("COMMIT")
            self._unwritten = []

    def close(self) -> None:
        """Flush, and leave one file without a write-ahead log."""
        self.flush()
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()


def read_facts(path: Path) -> list[Fact]:
    """All facts of a journal, in order.

    Raises:
        InputError: there is none, or another version of RollMux wrote it; one line.
    """
    name = one_line(str(path), 4096)
    if not path.is_file():
        raise InputError(f"{name}: there is no journal of a run here")
    try:
        database = sqlite3.connect(path)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            rows = database.execute("SELECT kind, body FROM facts ORDER BY number").fetchall() if version == SCHEMA else []
        finally:
            database.close()
    except sqlite3.Error as error:
        raise InputError(f"{name}: is no journal: {error}") from None
    if version != SCHEMA:
        raise InputError(f"{name}: is of version {version}; this RollMux reads version {SCHEMA}")
    adapters: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(_KINDS[kind]) for kind in {row[0] for row in rows}}
    return [adapters[kind].validate_json(body) for kind, body in rows]


def read_run(folder: Path) -> RunRecord:
    """The run that a folder holds.

    Raises:
        InputError: it holds none; one line.
    """
    record = record_of(read_facts(folder / JOURNAL))
    solo = {path.parent.name: read_run(path.parent) for path in sorted(folder.glob(f"solo/*/{JOURNAL}"))}
    return dataclasses.replace(record, solo=solo)


def record_of(facts: Iterable[Fact]) -> RunRecord:
    """Facts by kind."""
    found: dict[str, list[Any]] = defaultdict(list)
    started: Started | None = None
    ended: Ended | None = None
    for fact in facts:
        if isinstance(fact, Started):
            started = fact
        elif isinstance(fact, Ended):
            ended = fact
        else:
            found[_FIELDS.get(type(fact), "log")].append(fact)
    if started is None:
        raise InputError("the journal does not begin with the start of a run")
    by_kind: dict[str, Any] = {name: tuple(facts) for name, facts in found.items()}
    return RunRecord(started, ended=ended, **by_kind)


def state_of(record: RunRecord) -> State:
    """The state that a run's events lead to."""
    state = State(record.started.cluster, observed=True)
    for event in record.log:
        apply(state, event)
    return state


def _plain(value: Any) -> Any:
    """A fact as JSON has it."""
    if isinstance(value, BaseModel):
        as_given = isinstance(value, JobSpec)  # some keys of it exclude each other
        return value.model_dump(mode="json", exclude_none=True, exclude_unset=as_given, by_alias=True)
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value
