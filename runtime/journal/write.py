"""The journal of a run: its facts, in SQLite, written as they happen. Replaying its events gives the state.

What is acted on must not be forgotten: admissions, moves, checkpoints and everything else that concerns placements is committed
soon. Phases and iterations are committed in batches, or when somebody waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from policies.registry import observed_state
from rollmux_env.cluster.events import Progressed, Ticked
from rollmux_env.cluster.recorded import apply_all_recorded
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.locks import take_lock
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import JobSpec
from runtime.journal import facts as kinds
from runtime.journal.facts import Fact
from runtime.journal.read import JOURNAL as JOURNAL
from runtime.journal.read import SCHEMA as SCHEMA
from runtime.journal.read import TABLE, add_checksums, check_version, checksum, connect
from runtime.journal.read import is_begun as is_begun
from runtime.journal.read import read_facts as read_facts
from runtime.journal.record import RunRecord, fields_of_kinds

DRIVER_LOCK = "driver.lock"  # of the process that a run or a service was started by
LOCK = "journal.lock"
_BATCHED = (kinds.PhaseSlice, kinds.SyncSlice, kinds.Iteration, Progressed, Ticked, kinds.Granted)
_AT_ONCE = (  # what must not be forgotten of what the scheduler was told, and follows from nothing else
    *(scheduler_facts.Confined, scheduler_facts.Continued, scheduler_facts.Absent),
    *(scheduler_facts.Drained, scheduler_facts.Undrained, scheduler_facts.Joined),
)
Row = tuple[str, str]  # kind and JSON of a fact
_BATCH = 64  # facts; more of the batched kinds are never lost
_TOGETHER = 240  # facts of a statement: SQLite takes at least 999 values
_RECENT = 5000  # facts that are kept as they were written
_PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class Unwritable(InputError):
    """The journal cannot be written now, for want of room or because somebody else has it; later it may be. One line."""

    status = 503


class Journal:
    """Writes the facts of one run. There is one writer at a time: it holds a lock in the journal's folder until it ends.

    Args:
        path: a new file; or, where the run goes on, the one that there is.
        resume: whether it goes on.
        wait_s: for how long to wait for a writer that is about to end, seconds.

    Attributes:
        last_number: of the last fact on the disk, from 1; 0 where there is none.
        recent: number, kind and JSON of the last ones that were brought there. flushed: is called when more have been.
        binds: whether one that no commit has taken yet is of a kind that waits for no others.

    Raises:
        InputError: it is there and the run is new, or the other way round; another process writes it; or nobody can; one line.
    """

    def __init__(self, path: Path, resume: bool = False, wait_s: float = 0.0) -> None:
        self._name = name = one_line(str(path), 4096)
        if not resume and is_begun(path):
            raise InputError(f"{name}: is the journal of a run already; choose another folder")
        if resume and not path.is_file():
            raise InputError(f"{name}: there is no journal of a run here")
        self._lock = take_lock(path.with_name(LOCK), wait_s)
        if not resume:  # nothing is in it
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        self._unwritten: list[Row] = []
        self.binds = self._binding = False
        self.recent: deque[tuple[int, str, str]] = deque(maxlen=_RECENT)
        self.flushed: Callable[[], None] = lambda: None
        try:
            if not resume:  # SQLite gives its other files the same mode
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._database = connect(path)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            if resume:
                if check_version(self._database, name) < SCHEMA:
                    read_facts(path)  # what is damaged gets no checksums
                    add_checksums(self._database)
            else:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute(TABLE)
                self._database.execute(f"PRAGMA user_version={SCHEMA}")
                self._database.execute("COMMIT")
            self.last_number: int = self._database.execute("SELECT coalesce(max(number), 0) FROM facts").fetchone()[0]
        except (sqlite3.Error, OSError, InputError) as error:
            self._lock.close()
            if isinstance(error, InputError):
                raise
            raise InputError(f"{name}: cannot be written: {error}") from None

    def put(self, *facts: Fact) -> None:
        """Take facts, which the next commit writes. Those of one call are on the disk together or not at all."""
        self._unwritten += [(kinds.kind_of(fact), _JSON.encode(fact)) for fact in facts]
        self.binds = self.binds or not all(map(_may_wait, facts))

    def write(self, *facts: Fact) -> None:
        """Take facts; on return all are on the disk, unless each is of a kind that may wait for others.

        Raises:
            InputError: as `commit`.
        """
        self.put(*facts)
        if self.is_due:
            self.commit()

    def commit(self) -> None:
        """Bring everything to the disk.

        Raises:
            InputError: the journal cannot be written (Unwritable: now); one line. What was taken waits for the next commit, and
                what was on the disk stays there.
        """
        rows = self.take()
        try:
            self.store(rows)
        except BaseException:
            self.put_back(rows)
            raise
        self.stored(rows)

    def take(self) -> list[Row]:
        """All facts that are not on the disk, for `store`; either `stored` or `put_back` is told of them then."""
        rows, self._unwritten = self._unwritten, []
        self._binding, self.binds = self.binds, False
        return rows

    def store(self, rows: list[Row]) -> None:
        """Write facts in one transaction; in whatever thread, one call at a time. Raises as `commit`.

        Usually that is one statement, which is a transaction of its own: each takes Python's lock from the loop and gives it back.
        """
        checked = [
            (number, kind, body, checksum(number, kind.encode(), body.encode()))
            for number, (kind, body) in enumerate(rows, self.last_number + 1)
        ]
        try:
            if len(rows) > _TOGETHER:
                self._database.execute("BEGIN IMMEDIATE")
            for first in range(0, len(rows), _TOGETHER):
                part = checked[first : first + _TOGETHER]
                places = ",".join(["(?,?,?,?)"] * len(part))
                self._database.execute(f"INSERT INTO facts VALUES {places}", [*chain.from_iterable(part)])
            if len(rows) > _TOGETHER:
                self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            kind = Unwritable if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING else InputError
            raise kind(f"{self._name}: cannot be written: {error}") from None

    def stored(self, rows: list[Row]) -> None:
        """Facts are on the disk."""
        self._binding = False
        if rows:
            self.recent.extend((number, *row) for number, row in enumerate(rows, self.last_number + 1))
            self.last_number += len(rows)
            self.flushed()

    def put_back(self, rows: list[Row]) -> None:
        """Facts could not be written: they are the first ones of the next commit."""
        self._unwritten[:0] = rows
        self.binds, self._binding = self.binds or self._binding, False

    @property
    def unwritten(self) -> bool:
        """Whether there are facts that no commit has taken yet."""
        return bool(self._unwritten)

    @property
    def is_due(self) -> bool:
        """Whether some of them wait for no others."""
        return self.binds or len(self._unwritten) >= _BATCH

    @property
    def is_bound(self) -> bool:
        """Whether facts that nobody may act on before they are on the disk are not there yet."""
        return self.binds or self._binding

    def close(self) -> None:
        """Commit, leave one file without a write-ahead log, and give the lock back."""
        try:
            self.commit()
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise InputError(f"{self._name}: cannot be written: {error}") from None
        finally:
            self._database.close()
            self._lock.close()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with the facts of a journal is said with its name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{one_line(str(path), 4096)}: {error}; `rollmux journal check` says where") from None


def read_record(folder: Path) -> RunRecord:
    """What a folder holds of a run; whether its events can have happened is not looked at.

    Raises:
        InputError: it holds none, or a damaged one; one line.
    """
    facts = read_facts(folder / JOURNAL)
    with naming(folder / JOURNAL):
        return record_of(facts)


def read_run(folder: Path) -> RunRecord:
    """The run that a folder holds.

    Raises:
        InputError: it holds none, or a damaged one; one line.
    """
    record = read_record(folder)
    with naming(folder / JOURNAL):
        state_of(record)
    return record


def record_of(facts: Iterable[Fact]) -> RunRecord:
    """Facts by kind; an iteration that its job has been set back behind is among those that are repeated.

    Raises:
        InputError: they are no run's; one line.
    """
    by_field: dict[str, list[Any]] = defaultdict(list)
    fields = fields_of_kinds()
    for fact in facts:
        by_field[fields[type(fact)]].append(fact)
        if isinstance(fact, kinds.Relaunched):
            by_field["ended"].clear()
        if isinstance(fact, kinds.Restarted | kinds.TakenBack):
            again = [done for done in by_field["iterations"] if done.job_id == fact.job_id and done.number >= fact.iteration]
            by_field["repeated"] += again
            by_field["iterations"] = [done for done in by_field["iterations"] if done not in again]
    started, ended = by_field.pop("started", []), by_field.pop("ended", [])
    if not started:
        raise InputError("the journal does not begin with the start of a run")
    if len(started) > 1:
        raise InputError("the journal holds the start of a run twice")
    by_kind: dict[str, Any] = {name: tuple(own) for name, own in by_field.items()}
    return RunRecord(started[0], ended=ended[-1] if ended else None, **by_kind)


def state_of(record: RunRecord) -> State:
    """The state that a run's events lead to.

    Raises:
        InputError: one of them cannot have happened after those before it; one line.
    """
    state = observed_state(record.started.policy, record.started.cluster)
    apply_all_recorded(state, record.log)
    return state


def _may_wait(fact: Fact) -> bool:
    if isinstance(fact, kinds.Told):
        return not any(isinstance(one, _AT_ONCE) for one in fact.facts)
    return isinstance(fact, _BATCHED)


def _opened(value: Any) -> Any:
    """A part of a fact as JSON has it, if JSON does not know it; what is in it may be such a part again."""
    if isinstance(value, kinds.Told):  # JSON takes what is told for lists
        return kinds.fields_of(value) | {"facts": [_news_as_json(fact) for fact in value.facts]}
    if dataclasses.is_dataclass(value):
        return kinds.fields_of(value)
    if isinstance(value, BaseModel):
        as_given = isinstance(value, JobSpec)  # some keys of it exclude each other
        return value.model_dump(mode="json", exclude_none=True, exclude_unset=as_given, by_alias=True)
    return sorted(value) if isinstance(value, frozenset) else dict(value)


def _news_as_json(fact: scheduler_facts.Fact) -> dict[str, Any]:
    fields = kinds.fields_of(fact)
    if fields.get("rule") is not None:
        fields["rule"] = True
    return {"kind": kinds.kind_of(fact), **fields}


_JSON = json.JSONEncoder(separators=(",", ":"), default=_opened, check_circular=False)
