"""The writer of a run's journal: its facts, in SQLite, written as they happen. Replaying its events gives the state.

Admissions, moves, checkpoints and everything else that concerns placements must not be lost once it is acted on, so it is committed
soon. Phases and iterations are committed in batches, or when a task waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel

from policies.registry import observed_state
from rollmux_env.cluster.events import Progressed, Ticked
from rollmux_env.cluster.recorded import apply_all_recorded
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.files import sync
from rollmux_env.garbage import without_collections
from rollmux_env.locks import GLANCE_S, take_lock
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.validation_errors import one_line
from runtime.jobs.spec import CommonJob, dump_job
from runtime.journal import facts as journal_facts
from runtime.journal.facts import Fact
from runtime.journal.kinds import fields_of, kind_of
from runtime.journal.parts import newest_part, part_after, part_paths
from runtime.journal.read import JOURNAL as JOURNAL
from runtime.journal.read import SCHEMA as SCHEMA
from runtime.journal.read import (
    TABLE,
    add_checksums,
    check_version,
    checksum,
    connect,
    facts_of,
    first_number,
    is_continued,
    last_carried,
    opened,
)
from runtime.journal.read import is_begun as is_begun
from runtime.journal.read import read_facts as read_facts
from runtime.journal.record import RunRecord, fields_of_kinds

DRIVER_LOCK = "driver.lock"  # lock of the process that started a run or a service
SERVES = "serve"  # purpose of that lock in the folder of a service
LOCK = "journal.lock"
_BATCHED = (
    journal_facts.PhaseSlice,
    journal_facts.SyncSlice,
    journal_facts.IterationSlice,
    Progressed,
    Ticked,
    journal_facts.PhaseGranted,
    journal_facts.MetricsReported,
)
_AT_ONCE = (  # reports to the scheduler that must not be lost and do not follow from other facts
    *(scheduler_facts.Confined, scheduler_facts.Continued, scheduler_facts.Absent, scheduler_facts.RequestsWithdrawn),
    *(scheduler_facts.Drained, scheduler_facts.Undrained, scheduler_facts.Joined),
    *(scheduler_facts.QuotaChanged, scheduler_facts.MonthStarted),
)
Row = tuple[str, str]  # kind and JSON of a fact
_BATCH = 64  # largest number of facts of the batched kinds that a crash may lose
_TOGETHER = 240  # facts in one statement, because SQLite takes at least 999 values
_RECENT = 5000  # facts to keep in memory as they were written
_PASSING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def lock_driver(folder: Path, purpose: str = "run") -> IO[str]:
    """Take the lock of the process that starts a run or a service in a folder, as `take_lock` does.

    Args:
        folder: Folder of the run or service.
        purpose: `run` or `SERVES`.
    """
    return take_lock(folder / DRIVER_LOCK, GLANCE_S, purpose)


class Unwritable(InputError):
    """The journal cannot be written now, for example because the disk is full or the file is locked. Later it may succeed."""

    status = 503


class Journal:
    """Writes the facts of one run. There is only one writer at a time, which holds a lock in the journal's folder.

    Args:
        path: Path of a new file, or of any part if the run resumes. It continues in the newest part once the lock is held, since
            the writer before may have begun another one until then.
        resume: Whether the run resumes.
        wait_s: Longest wait for a writer that is about to end, seconds.

    Attributes:
        path: Path of the part to which facts are written.
        first_number: Number of the first fact of this part of the journal.
        last_number: Number of the last fact on the disk, from 1, or 0 if there is none.
        carried: Number of facts of this part that the part before it has, too.
        recent: Number, kind and JSON of the facts that were written last.
        flushed: Function that is called after more facts have been written.
        binds: Whether a fact that no commit has taken yet is of a kind to be committed without delay.

    Raises:
        InputError: The file exists although the run is new, or does not exist although it resumes; another process writes it; or it
            cannot be written.
    """

    def __init__(self, path: Path, resume: bool = False, wait_s: float = 0.0) -> None:
        name = one_line(str(path), 4096)
        if not resume and is_begun(path):
            raise InputError(f"{name}: is the journal of a run already; choose another folder")
        if resume and not path.is_file():
            raise InputError(f"{name}: there is no journal of a run here")
        self._lock = take_lock(path.with_name(LOCK), wait_s)
        if resume:
            path = newest_part(path.parent)
        self.path, self._name = path, one_line(str(path), 4096)
        if not resume:  # the file has no facts
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        self._database: sqlite3.Connection | None = None  # closed between the end of a part and the next commit
        self._refusal: str | None = None  # why nothing can ever be written again
        self._unwritten: list[Row] = []
        self.binds = self._binding = False
        self.recent: deque[tuple[int, str, str]] = deque(maxlen=_RECENT)
        self.flushed: Callable[[], None] = lambda: None
        self.first_number: int
        self.last_number: int
        try:
            if not resume:  # SQLite creates its other files with the same mode
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            database = self._connection()
            if resume:
                if check_version(database, self._name) < SCHEMA:
                    read_facts(path)  # refuses a damaged journal before checksums are added
                    add_checksums(database)
            else:
                _create(database)
            ends = "SELECT coalesce(min(number), 1), coalesce(max(number), 0) FROM facts"
            self.first_number, self.last_number = database.execute(ends).fetchone()
            self.carried = max(0, last_carried(database) - self.first_number + 1)
        except (sqlite3.Error, OSError, InputError) as error:
            self._lock.close()
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self._name}: cannot be written: {error}") from None

    @property
    def length(self) -> int:
        """Number of facts of this part that are on the disk."""
        return self.last_number - self.first_number + 1

    def put(self, *facts: Fact) -> None:
        """Queue facts for the next commit. The facts of one call are written together or not at all."""
        self._unwritten += map(row_of, facts)
        self.binds = self.binds or not all(map(_may_wait, facts))

    def write(self, *facts: Fact) -> None:
        """Queue facts, and commit unless all of them are of kinds that may wait for a batch.

        Raises:
            InputError: The commit fails, as for `commit`.
        """
        self.put(*facts)
        if self.is_due:
            self.commit()

    def commit(self) -> None:
        """Write all queued facts to the disk.

        Raises:
            Unwritable: The journal cannot be written now. The facts stay queued for the next commit.
            InputError: The journal cannot be written. The facts stay queued, and facts on the disk stay there.
        """
        rows = self.take()
        try:
            self.store(rows)
        except BaseException:
            self.put_back(rows)
            raise
        self.stored(rows)

    def take(self) -> list[Row]:
        """Take all queued facts for `store`. Afterwards either `stored` or `put_back` must be called with them."""
        rows, self._unwritten = self._unwritten, []
        self._binding, self.binds = self.binds, False
        return rows

    def store(self, rows: list[Row]) -> None:
        """Write facts in one transaction. May be called in any thread, but only one call at a time. Raises as `commit` does.

        Usually this is a single statement, because each statement takes Python's global lock from the event loop and returns it.
        """
        if not rows:
            return
        try:
            database = self._connection()
            if len(rows) > _TOGETHER:
                database.execute("BEGIN IMMEDIATE")
            _insert(database, rows, self.last_number + 1)
            if len(rows) > _TOGETHER:
                database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database is not None and self._database.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            kind = Unwritable if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING else InputError
            raise kind(f"{self._name}: cannot be written: {error}") from None

    def stored(self, rows: list[Row]) -> None:
        """Record that facts are on the disk."""
        self._binding = False
        if rows:
            self.recent.extend((number, *row) for number, row in enumerate(rows, self.last_number + 1))
            self.last_number += len(rows)
            self.flushed()

    def put_back(self, rows: list[Row]) -> None:
        """Return facts that could not be written to the front of the queue."""
        self._unwritten[:0] = rows
        self.binds, self._binding = self.binds or self._binding, False

    def discard(self) -> None:
        """Drop the queued facts."""
        self._unwritten, self.binds = [], False

    @property
    def has_unwritten(self) -> bool:
        """Whether there are queued facts that no commit has taken yet."""
        return bool(self._unwritten)

    @property
    def is_due(self) -> bool:
        """Whether queued facts should be committed without delay."""
        return self.binds or len(self._unwritten) >= _BATCH

    @property
    def is_bound(self) -> bool:
        """Whether facts are not on the disk yet that must be there before anything acts on them."""
        return self.binds or self._binding

    def facts(self, known: int = 0) -> list[Fact]:
        """Return the facts of this part that are on the disk. May be called in any thread, also while facts are written.

        Args:
            known: Number of facts at its beginning that are left out.

        Raises:
            InputError: The journal is damaged, or cannot be read.
        """
        with opened(self.path) as database, without_collections():
            return [*facts_of(database, self._name, first_number(database) + known)]

    def begin_part(self, rows: Sequence[Row]) -> None:
        """Continue in the next part, which begins with some facts. May be called in any thread, between two calls of `store`.

        A kill at any moment leaves either part as the newest one, and both lead to the same state. The file is opened by the next
        commit: if there is no room for that, the commit waits as it does for any other reason.

        Args:
            rows: Rows of the facts of the next part, which follow from all facts of this one.

        Raises:
            OSError: The next part cannot be written. The journal continues in this one.
            sqlite3.Error: Likewise.
            InputError: It is not known which part would last, so that nothing can be written to any of them.
        """
        after = part_after(self.path)
        last = int(self._connection().execute("SELECT max(number) FROM facts").fetchone()[0])
        first = last - len(rows) + 1
        try:
            write_part(after, first, rows, self._close_part)
        except (OSError, sqlite3.Error) as error:
            if after.exists():
                problem = f"{one_line(str(after), 4096)}: may not last: {error}"
                self._refusal = f"{self._name}: cannot be written: {problem}"
                raise InputError(problem) from None
            raise
        self.path, self._name = after, one_line(str(after), 4096)
        self.first_number, self.carried = first, len(rows)

    def _connection(self) -> sqlite3.Connection:
        """Return the database of the part, and open it if necessary.

        Raises:
            InputError: Nothing can ever be written again.
            sqlite3.Error: It cannot be opened now.
        """
        if self._refusal is not None:
            raise InputError(self._refusal)
        if self._database is None:
            self._database = _writing(self.path)
        return self._database

    def _close_part(self) -> None:
        """Leave a single file without a write-ahead log."""
        database, self._database = self._database, None
        if database is not None:
            with contextlib.closing(database):
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Commit, leave a single file without a write-ahead log, and release the lock."""
        try:
            self.commit()
            self._close_part()
        except sqlite3.Error as error:
            raise InputError(f"{self._name}: cannot be written: {error}") from None
        finally:
            if self._database is not None:
                self._database.close()
            self._database, self._refusal = None, f"{self._name}: is closed"
            self._lock.close()


def _writing(path: Path) -> sqlite3.Connection:
    """Open the file of a journal to write it."""
    database = connect(path)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        database.close()
        raise
    return database


def row_of(fact: Fact) -> Row:
    """Return the kind and the JSON of a fact."""
    return kind_of(fact), _JSON.encode(fact)


def write_part(path: Path, first: int, rows: Sequence[Row], before_rename: Callable[[], None] = lambda: None) -> None:
    """Write a new part of a journal under another name, and rename it when it is on the disk.

    Args:
        path: Path of the new file.
        first: Number of its first fact.
        rows: Rows of the part, as `row_of` returns them.
        before_rename: Function that is called when the file is written, after which a failure may leave the part or not.

    Raises:
        OSError: The file cannot be written, or its name may not last.
        sqlite3.Error: It cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)  # a kill has left it
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(connect(unfinished)) as database:
            database.execute("PRAGMA synchronous=FULL")
            _create(database, rows, first)
        sync(unfinished)
        before_rename()
        os.replace(unfinished, path)
        sync(path.parent)
    except (OSError, sqlite3.Error):
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _create(database: sqlite3.Connection, rows: Sequence[Row] = (), first: int = 1) -> None:
    """Create the table of facts, with some facts in it, in one transaction."""
    database.execute("BEGIN IMMEDIATE")
    database.execute(TABLE)
    database.execute(f"PRAGMA user_version={SCHEMA}")
    _insert(database, rows, first)
    database.execute("COMMIT")


def _insert(database: sqlite3.Connection, rows: Sequence[Row], first: int) -> None:
    """Insert facts with their checksums.

    Args:
        database: Database of the journal.
        rows: Facts in order.
        first: Number of the first of them.
    """
    checked = [
        (number, kind, body, checksum(number, kind.encode(), body.encode())) for number, (kind, body) in enumerate(rows, first)
    ]
    for begin in range(0, len(rows), _TOGETHER):
        part = checked[begin : begin + _TOGETHER]
        places = ",".join(["(?,?,?,?)"] * len(part))
        database.execute(f"INSERT INTO facts VALUES {places}", [*chain.from_iterable(part)])


@contextlib.contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add the name of a journal to errors about its facts."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{one_line(str(path), 4096)}: {error}; `rollmux journal check` says where") from None


def read_record(folder: Path) -> RunRecord:
    """Read the record of the run in a folder, since the last roll-over, without checking that its events are possible.

    Raises:
        InputError: There is no journal, or it is damaged.
    """
    path = newest_part(folder)
    facts = read_facts(path)
    with name_in_errors(path):
        return record_of(facts)


def read_run(folder: Path) -> RunRecord:
    """Read the record of the run in a folder, since the last roll-over, and check that its events are possible.

    Raises:
        InputError: There is no journal, it is damaged, or an event is impossible.
    """
    record = read_record(folder)
    with name_in_errors(newest_part(folder)):
        state_of(record)
    return record


def read_earlier(folder: Path, from_s: float = -inf) -> list[RunRecord]:
    """Read the records before the last roll-over without jobs, oldest first. Parts that the next one covers are left out.

    Args:
        folder: Folder of the journal.
        from_s: Time of the run, in seconds. Parts that had ended by then may be left out.

    Raises:
        InputError: A part is damaged.
    """
    records: list[RunRecord] = []
    for after, path in pairwise(reversed(part_paths(folder))):
        if is_continued(after):
            continue
        facts = read_facts(path)
        with name_in_errors(path):
            records.append(record_of(facts))
        if records[-1].started.at_s <= from_s:
            break
    return records[::-1]


def record_of(facts: Iterable[Fact]) -> RunRecord:
    """Sort facts by kind. Iterations that a job has to do again are sorted into `repeated`.

    Raises:
        InputError: They are not the facts of a run.
    """
    by_field: dict[str, list[Any]] = defaultdict(list)
    fields = fields_of_kinds()
    for fact in facts:
        by_field[fields[type(fact)]].append(fact)
        if isinstance(fact, journal_facts.RunRelaunched):
            by_field["ended"].clear()
        if isinstance(fact, journal_facts.JobRestarted | journal_facts.JobRolledBack):
            again = [done for done in by_field["iterations"] if done.job_id == fact.job_id and done.number >= fact.iteration]
            by_field["repeated"] += again
            by_field["iterations"] = [done for done in by_field["iterations"] if done not in again]
            by_field["jobs_carried"] = [_without_repeated(carried, fact) for carried in by_field["jobs_carried"]]
    started, ended = by_field.pop("started", []), by_field.pop("ended", [])
    if not started:
        raise InputError("the journal does not begin with the start of a run")
    if len(started) > 1:
        raise InputError("the journal holds the start of a run twice")
    by_kind: dict[str, Any] = {name: tuple(own) for name, own in by_field.items()}
    return RunRecord(started[0], ended=ended[-1] if ended else None, **by_kind)


def _without_repeated(
    carried: journal_facts.JobCarried, fact: journal_facts.JobRestarted | journal_facts.JobRolledBack
) -> journal_facts.JobCarried:
    if carried.job_id != fact.job_id or carried.iterations <= fact.iteration:
        return carried
    return dataclasses.replace(carried, iterations=fact.iteration)


def state_of(record: RunRecord) -> State:
    """Return the state to which a run's events lead.

    Raises:
        InputError: An event is impossible after those before it.
    """
    state = observed_state(record.started.policy, record.started.cluster)
    apply_all_recorded(state, record.log)
    return state


def _may_wait(fact: Fact) -> bool:
    if isinstance(fact, journal_facts.SchedulerInformed):
        return not any(isinstance(one, _AT_ONCE) for one in fact.facts)
    return isinstance(fact, _BATCHED)


def _opened(value: Any) -> Any:
    """Convert a part of a fact that JSON does not know. The result may contain such parts again."""
    if isinstance(value, journal_facts.SchedulerInformed):  # its facts are named tuples, which JSON would write as lists
        return fields_of(value) | {"facts": [_news_as_json(fact) for fact in value.facts]}
    if dataclasses.is_dataclass(value):
        return fields_of(value)
    if isinstance(value, CommonJob):
        return dump_job(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, by_alias=True)
    return sorted(value) if isinstance(value, frozenset) else dict(value)


def _news_as_json(fact: scheduler_facts.Fact) -> dict[str, Any]:
    fields = fields_of(fact)
    if fields.get("rule") is not None:
        fields["rule"] = True
    return {"kind": kind_of(fact), **fields}


_JSON = json.JSONEncoder(separators=(",", ":"), default=_opened, check_circular=False)
