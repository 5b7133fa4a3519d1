"""Reading of a journal file row by row, so that damage is located by the number of the first damaged fact."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular
from rollmux_env.garbage import without_collections
from rollmux_env.validation_errors import describe, one_line
from runtime.journal.facts import Fact
from runtime.journal.kinds import KINDS
from runtime.journal.log import log_problem

JOURNAL = "journal.sqlite"
SCHEMA = 4
TABLE = "CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, checksum INTEGER NOT NULL)"
_TABLES = {3: "CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)", SCHEMA: TABLE}
_LARGEST = 64 << 20  # largest size of a fact, bytes
_OF_A_RUN = ("checkpoints/*/*/checkpoint.json", "logs/*/*.log")  # files that exist only if the journal once had facts


class DamagedJournal(InputError):
    """A journal is damaged.

    Args:
        name: Name of its file.
        number: Number of the first fact that is damaged or missing.
        problem: Description of the damage.
    """

    def __init__(self, name: str, number: int, problem: str) -> None:
        super().__init__(f"{name}: fact {number} {problem}; `rollmux journal check` says what is whole")
        self.number = number
        self.problem = problem


def checksum(number: int, kind: bytes, body: bytes) -> int:
    """Return the CRC-32 of a fact with its number, so that a fact in the place of another is detected too."""
    return crc32(body, crc32(b"%d %b " % (number, kind)))


def connect(path: Path) -> sqlite3.Connection:
    """Open the file of a journal without trusting its content: its schema runs nothing, and the size of a fact is limited."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)  # commits are made in another thread
    database.text_factory = bytes
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def _reading(path: Path) -> sqlite3.Connection:
    database = connect(path)
    database.execute("PRAGMA writable_schema=ON")  # needed to read a file that was cut off; nothing is written
    return database


def is_begun(path: Path) -> bool:
    """Return whether a journal has any facts. A full disk or a kill may leave one that was only just created.

    Raises:
        InputError: The file is no journal, or it is empty or missing beside other files of a run that had one.
    """
    name = one_line(str(path), 4096)
    log = path.with_name(f"{path.name}-wal")
    if path.is_symlink() or path.exists():
        check_regular(path)
    size = path.stat().st_size if path.exists() else 0
    if size and _has_facts(path, name):
        return True
    left = next((file for pattern in _OF_A_RUN for file in path.parent.glob(pattern)), None)
    if left is None and not size and log.is_file() and log.stat().st_size:  # SQLite would remove such a log
        left = log
    if left is not None:
        what = "is empty" if path.exists() else "is missing"
        raise InputError(f"{name}: {what}, and there is {one_line(str(left.relative_to(path.parent)), 300)} of a run that had one")
    return False


def _has_facts(path: Path, name: str) -> bool:
    check_log(path)
    try:
        with contextlib.closing(_reading(path)) as database:
            tables = database.execute("SELECT 1 FROM sqlite_master").fetchone()
            return tables is not None and database.execute("SELECT 1 FROM facts").fetchone() is not None
    except sqlite3.Error as error:
        raise InputError(f"{name}: is no journal: {error}") from None


def read_facts(path: Path) -> list[Fact]:
    """Read all facts of a part of a journal in order.

    Raises:
        InputError: There is no journal, or it was written by an unsupported version of RollMux.
        DamagedJournal: The journal is damaged.
    """
    name = one_line(str(path), 4096)
    facts = []
    check_log(path)
    with opened(path) as database, without_collections():
        for fact in facts_of(database, name):
            facts.append(fact)  # noqa: PERF402 - the number of facts is needed if the next one is damaged
        if problem := structure_problem(database):
            raise DamagedJournal(name, first_number(database) + len(facts), f"and what follows may be damaged: {problem}")
    return facts


def first_fact(path: Path) -> Fact | None:
    """Return the first fact in a part of a journal, or None if there is none.

    Raises:
        InputError: There is no journal, or it was written by an unsupported version of RollMux.
        DamagedJournal: The fact is damaged.
    """
    check_log(path)
    with opened(path) as database:
        return next(facts_of(database, one_line(str(path), 4096)), None)


def last_fact(path: Path) -> tuple[int, Fact | None]:
    """Return the number of the last fact in a part of a journal, and the fact; 0 and None if there is none.

    Raises:
        InputError: There is no journal, or it was written by an unsupported version of RollMux.
        DamagedJournal: The fact is damaged.
    """
    name = one_line(str(path), 4096)
    check_log(path)
    with opened(path) as database:
        number = database.execute("SELECT coalesce(max(number), 0) FROM facts").fetchone()[0]
        facts = [*facts_of(database, name, number)] if number else []
    return number, facts[-1] if facts else None


def check_there(path: Path) -> None:
    """Check that there is something at the path of a journal.

    Raises:
        InputError: There is nothing.
    """
    if not path.exists() and not path.is_symlink():
        raise InputError(f"{one_line(str(path), 4096)}: there is no journal of a run here")


def check_log(path: Path) -> None:
    """Check that SQLite would not drop commits from a journal's log.

    Raises:
        InputError: It would.
    """
    if problem := log_problem(path):
        raise InputError(f"{one_line(str(path), 4096)}: {problem}; `rollmux journal check` says what is whole")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a journal for reading, if its version is supported.

    Raises:
        InputError: There is no journal, or it cannot be read.
    """
    name = one_line(str(path), 4096)
    check_there(path)
    check_regular(path)
    try:
        database = _reading(path)
        try:
            version = check_version(database, name)
            kind = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'facts'").fetchone()
            if kind is not None and kind != (b"table", _TABLES[version].encode()):  # a query of a view may never end
                raise InputError(f"{name}: is no journal: its facts are no table of RollMux")
            yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise InputError(f"{name}: is no journal: {error}") from None


def first_number(database: sqlite3.Connection) -> int:
    """Return the number of the first fact of an open part: 1, or for a later part the number of its start of a run."""
    row = database.execute("SELECT number, kind FROM facts ORDER BY number LIMIT 1").fetchone()
    return int(row[0]) if row is not None and row[1] == b"Started" else 1


def facts_of(database: sqlite3.Connection, name: str, begin: int | None = None) -> Iterator[Fact]:
    """Yield the facts of an open part of a journal one after the other.

    Args:
        database: Connection to the journal.
        name: Name of the file, for error messages.
        begin: Number of the fact with which to begin, or None for the first one of the part.

    Raises:
        DamagedJournal: The next fact is damaged or missing.
    """
    try:
        number = first_number(database) if begin is None else begin
    except sqlite3.Error as error:
        raise DamagedJournal(name, 1, f"cannot be read: {error}") from None
    rows = _rows_after(database, number - 1)
    while True:
        try:
            row = rows.fetchone()
        except sqlite3.Error as error:
            raise DamagedJournal(name, number, f"cannot be read: {error}") from None
        if row is None:
            return
        if row[0] != number:
            raise DamagedJournal(name, number, "is missing")
        kind = _whole_kind(row, name)
        if kind not in KINDS:
            raise DamagedJournal(name, number, f"is of a kind that this RollMux does not know, {one_line(kind, 40)}")
        try:
            yield parsed(kind, row[2])
        except (ValidationError, TypeError, ValueError) as error:
            first = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise DamagedJournal(name, number, f"({kind}) is damaged: {one_line(first, 200)}") from None
        number += 1


def _rows_after(database: sqlite3.Connection, number: int, most: int = -1) -> sqlite3.Cursor:
    """Select number, kind, body and checksum of facts, oldest first. The checksum is None in versions without one."""
    stated = "NULL" if _version(database) < SCHEMA else "coalesce(checksum, -1)"
    return database.execute(
        f"SELECT number, kind, body, {stated} FROM facts WHERE number > ? ORDER BY number LIMIT ?", (number, most)
    )


def _whole_kind(row: tuple[int, Any, Any, int | None], name: str) -> str:
    """Return the kind of a fact after checking its checksum.

    Raises:
        DamagedJournal: The checksum is wrong.
    """
    number, kind, body, stated = row
    said = kind.decode(errors="replace") if isinstance(kind, bytes) else describe(kind)
    if stated is not None:
        is_text = isinstance(kind, bytes) and isinstance(body, bytes)
        if not is_text or checksum(number, kind, body) != stated:
            raise DamagedJournal(name, number, f"({one_line(said, 40)}) is damaged: its checksum is another one")
    return said


def parsed(kind: str, body: bytes | str) -> Fact:
    """Parse the JSON of a fact of a kind. Raises ValidationError if it is not valid."""
    return cast("Fact", _adapter(kind).validate_json(body))


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(KINDS[kind])


def entries_after(path: Path, number: int, most: int) -> list[tuple[int, str, str]]:
    """Return number, kind and JSON of the facts after a number, oldest first, without those that an earlier part has, too.

    The journal may be written at the same time.

    Raises:
        InputError: There is no journal, or it cannot be read.
    """
    with opened(path) as database:
        rows = _rows_after(database, max(number, last_carried(database)), most).fetchall()
    return [(row[0], _whole_kind(row, path.name), row[2].decode()) for row in rows]


def last_carried(database: sqlite3.Connection) -> int:
    """Return the number of the last fact that an open part has from the part before it, or 0 for a part without such facts."""
    return int(database.execute("SELECT coalesce(max(number), 0) FROM facts WHERE kind = 'PartBegun'").fetchone()[0])


def is_continued(path: Path) -> bool:
    """Return whether a part of a journal began while jobs were present, so that it covers the part before it.

    Raises:
        InputError: There is no journal, or it cannot be read.
    """
    with opened(path) as database:
        return last_carried(database) > 0


def structure_problem(database: sqlite3.Connection) -> str | None:
    """Return the problem that SQLite finds in the structure of an open journal, or None."""
    try:
        verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0].decode(errors="replace")
    except sqlite3.Error as error:
        verdict = str(error)
    return None if verdict == "ok" else one_line(verdict, 200)


def check_version(database: sqlite3.Connection, name: str) -> int:
    """Return the version of a journal if it is supported.

    Raises:
        InputError: It is not supported.
    """
    version = _version(database)
    if version not in _TABLES:
        read = " and ".join(map(str, _TABLES))
        raise InputError(f"{name}: is of version {version}; this RollMux reads versions {read}")
    return version


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def add_checksums(database: sqlite3.Connection) -> None:
    """Upgrade an open journal from the last version to this one, in one transaction."""
    database.create_function("checksum_of", 3, checksum)
    checked = "number, kind, body, checksum_of(number, CAST(kind AS BLOB), CAST(body AS BLOB))"
    copies = ("ALTER TABLE facts RENAME TO older", TABLE, f"INSERT INTO facts SELECT {checked} FROM older", "DROP TABLE older")
    try:
        for statement in ("BEGIN IMMEDIATE", *copies, f"PRAGMA user_version={SCHEMA}", "COMMIT"):
            database.execute(statement)
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
