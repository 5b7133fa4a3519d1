"""Reading the file of a journal row by row, so that damage is known by the number of the first fact that is not whole."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular
from rollmux_env.validation_errors import describe, one_line
from runtime.journal.facts import KINDS, Fact

JOURNAL = "journal.sqlite"
SCHEMA = 3
TABLE = "CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)"
_LARGEST = 64 << 20  # bytes of a fact
_OF_A_RUN = ("checkpoints/*/*/checkpoint.json", "logs/*/*.log")  # what there is only where a journal has held facts
_KINDS = {kind.__name__: kind for kind in KINDS}


class DamagedJournal(InputError):
    """A journal is not whole.

    Args:
        name: of its file. number: of the first fact that is damaged or missing. problem: what is wrong with it.
    """

    def __init__(self, name: str, number: int, problem: str) -> None:
        super().__init__(f"{name}: fact {number} {problem}; `rollmux journal check` says what is whole")
        self.number = number
        self.problem = problem


def connect(path: Path) -> sqlite3.Connection:
    """Open the file of a journal. What it holds is not believed: its schema runs nothing, and a fact has a largest size."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)  # commits are made in a thread of their own
    database.text_factory = bytes
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def _reading(path: Path) -> sqlite3.Connection:
    database = connect(path)
    database.execute("PRAGMA writable_schema=ON")  # else nothing can be read of a file that was cut off; nothing is written
    return database


def is_begun(path: Path) -> bool:
    """Whether there is a journal that holds anything: a disk without room, or a kill, may leave one that was only just made.

    Raises:
        InputError: the file is no journal, or it is empty or lost where a run has left more than a journal; one line.
    """
    name = one_line(str(path), 4096)
    log = path.with_name(f"{path.name}-wal")
    if path.is_symlink() or path.exists():
        check_regular(path)
    size = path.stat().st_size if path.exists() else 0
    if size and _has_facts(path, name):
        return True
    left = next((file for pattern in _OF_A_RUN for file in path.parent.glob(pattern)), None)
    if left is None and not size and log.is_file() and log.stat().st_size:  # SQLite would remove it
        left = log
    if left is not None:
        what = "is empty" if path.exists() else "is missing"
        raise InputError(f"{name}: {what}, and there is {one_line(str(left.relative_to(path.parent)), 300)} of a run that had one")
    return False


def _has_facts(path: Path, name: str) -> bool:
    try:
        with contextlib.closing(_reading(path)) as database:
            tables = database.execute("SELECT 1 FROM sqlite_master").fetchone()
            return tables is not None and database.execute("SELECT 1 FROM facts").fetchone() is not None
    except sqlite3.Error as error:
        raise InputError(f"{name}: is no journal: {error}") from None


def read_facts(path: Path) -> list[Fact]:
    """All facts of a journal, in order.

    Raises:
        InputError: there is none, or another version of RollMux wrote it; (DamagedJournal) it is not whole; one line.
    """
    name = one_line(str(path), 4096)
    facts = []
    with opened(path) as database:
        for fact in facts_of(database, name):
            facts.append(fact)  # noqa: PERF402 - what was read stays known
        if problem := structure_problem(database):
            raise DamagedJournal(name, len(facts) + 1, f"and what follows may be damaged: {problem}")
    return facts


def check_there(path: Path) -> None:
    """Refuse the path of a journal at which there is nothing.

    Raises:
        InputError: so it is; one line.
    """
    if not path.exists() and not path.is_symlink():
        raise InputError(f"{one_line(str(path), 4096)}: there is no journal of a run here")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A journal to be read, of this version.

    Raises:
        InputError: there is none, or none that can be read; one line.
    """
    name = one_line(str(path), 4096)
    check_there(path)
    check_regular(path)
    try:
        database = _reading(path)
        try:
            check_version(database, name)
            kind = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'facts'").fetchone()
            if kind is not None and kind != (b"table", TABLE.encode()):  # a view may go on for ever
                raise InputError(f"{name}: is no journal: its facts are no table of RollMux")
            yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise InputError(f"{name}: is no journal: {error}") from None


def facts_of(database: sqlite3.Connection, name: str) -> Iterator[Fact]:
    """The facts of an open journal, one after the other.

    Args:
        name: of the file, for errors.

    Raises:
        DamagedJournal: the next one is not whole; one line.
    """
    number = 1
    rows = database.execute("SELECT number, kind, body FROM facts ORDER BY number")
    while True:
        try:
            row = rows.fetchone()
        except sqlite3.Error as error:
            raise DamagedJournal(name, number, f"cannot be read: {error}") from None
        if row is None:
            return
        if row[0] != number:
            raise DamagedJournal(name, number, "is missing")
        kind = row[1].decode(errors="replace") if isinstance(row[1], bytes) else describe(row[1])
        if kind not in _KINDS:
            raise DamagedJournal(name, number, f"is of a kind that this RollMux does not know, {one_line(kind, 40)}")
        try:
            yield parsed(kind, row[2])
        except (ValidationError, TypeError, ValueError) as error:
            first = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise DamagedJournal(name, number, f"({kind}) is damaged: {one_line(first, 200)}") from None
        number += 1


def parsed(kind: str, body: bytes | str) -> Fact:
    """The fact of a kind that JSON says; raises ValidationError where it says none."""
    return cast("Fact", _adapter(kind).validate_json(body))


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def entries_after(path: Path, number: int, most: int) -> list[tuple[int, str, str]]:
    """Number, kind and JSON of the facts after a number, oldest first; the journal may be written meanwhile.

    Raises:
        InputError: there is none, or none that can be read; one line.
    """
    with opened(path) as database:
        rows = database.execute("SELECT number, kind, body FROM facts WHERE number > ? ORDER BY number LIMIT ?", (number, most))
        return [(at, kind.decode(), body.decode()) for at, kind, body in rows]


def structure_problem(database: sqlite3.Connection) -> str | None:
    """What SQLite finds wrong with the file of an open journal; None where it finds nothing."""
    try:
        verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0].decode(errors="replace")
    except sqlite3.Error as error:
        verdict = str(error)
    return None if verdict == "ok" else one_line(verdict, 200)


def check_version(database: sqlite3.Connection, name: str) -> None:
    """Refuse a journal that another version wrote.

    Raises:
        InputError: it is of another version; one line.
    """
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version != SCHEMA:
        raise InputError(f"{name}: is of version {version}; this RollMux reads version {SCHEMA}")
