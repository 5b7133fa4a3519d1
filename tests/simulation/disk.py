"""The disk of the service: what of the journal is synced, and what a kill in the middle of a commit leaves there."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

from rollmux_env.errors import InputError
from runtime.journal import rollover
from runtime.journal.facts import Fact, JobSubmitted
from runtime.journal.parts import entries_of_parts, newest_part, part_after
from runtime.journal.read import is_begun, last_fact, parsed
from runtime.journal.write import Journal, Row, Unwritable, read_facts, row_of
from tests.simulation.loop import Dead, Process, Strand, World

_SECTOR = 512  # bytes; of them either all or none are on the disk
_SYNC_S = (0.0005, 0.0005, 0.002, 0.03)
SLOW_S = 4.0


class Disk:
    """Where the journal of a service is.

    Args:
        faults: what happens to a commit, by its number from 1: `full`, `slow`, `dies before`, `dies after`, or `torn`.
        folder: of a real SQLite file; None: the facts are kept in memory, and each commit is whole or is not.

    Attributes:
        rows: that are synced. synced_s: when each was. holder: the process that writes.
        begins: Number of rows before each part of the journal.
        carried: Rows with which each part begins and that the part before it has, too.
        commits_at: Number of commits before each part.
        full_until_s, slow_until_s: Times of the world until which every commit finds no room, or takes long.
    """

    def __init__(self, world: World, faults: dict[int, str], folder: Path | None) -> None:
        self.world, self.faults, self.folder = world, faults, folder
        self.rows: list[Row] = []
        self.begins, self.commits_at = [0], [0]
        self.carried: list[list[Row]] = [[]]
        self.synced_s: list[float] = []
        self.holder: Process | None = None
        self.full_until_s = self.slow_until_s = 0.0
        self.commits = self.torn = self.refused = 0
        self.doubtful: list[Row] = []  # of a torn commit
        self.left: dict[str, bytes] | None = None  # what such a one leaves
        self.watch: Callable[[Row], None] = lambda _: None
        self._facts: list[Fact] = []  # of the first rows, as they were read before

    def is_begun(self) -> bool:
        """Whether there are facts: a torn commit may be there as a whole."""
        return bool(self.rows) or (self.folder is not None and bool(self.doubtful) and is_begun(newest_part(self.folder)))

    def facts(self) -> list[Fact]:
        """All that is synced of the newest part."""
        carried = [_parsed(*row) for row in self.carried[-1]]
        if self.folder is None:
            return carried + self._read()[self.begins[-1] :]
        facts = read_facts(newest_part(self.folder))
        self.found(self.begins[-1] + len(facts) - len(carried))
        return facts

    def submitted(self) -> list[JobSubmitted]:
        """The jobs that are synced of the newest part."""
        if self.folder is not None:
            self.found(last_fact(newest_part(self.folder))[0])
        rows = self.carried[-1] + self.rows[self.begins[-1] :]
        return [cast("JobSubmitted", _parsed(*row)) for row in rows if row[0] == "Submitted"]

    def parts(self) -> list[list[Fact]]:
        """Return the facts of each part of the journal."""
        newest, facts = self.facts(), self._read()
        own = [facts[begin:end] for begin, end in pairwise(self.begins)]
        return [*([_parsed(*row) for row in carried] + some for carried, some in zip(self.carried, own, strict=False)), newest]

    def _read(self) -> list[Fact]:
        """Return the facts of all rows; each row is read once."""
        self._facts += [_parsed(*row) for row in self.rows[len(self._facts) :]]
        return self._facts

    def begin_next_part(self) -> None:
        """Begin the next part of a journal that was rolled over, when no other process writes it."""
        if self.holder is not None and not self.holder.dead:
            return
        if self.folder is not None:
            self.found(last_fact(newest_part(self.folder))[0])
        begins = rollover.next_part(self.facts()) if self.rows[-1][0] == "Ended" else None
        if begins is None:
            return
        if self.folder is not None:
            rollover.begin_next_part(self.folder, lambda line: None)
        self._begins_part([])
        self._synced([row_of(fact) for fact in begins])

    def _begins_part(self, carried: list[Row]) -> None:
        self.begins.append(len(self.rows))
        self.commits_at.append(self.commits)
        self.carried.append(carried)

    def begin_part(self, rows: Sequence[Row], carry_out: Callable[[], None]) -> None:
        """Continue in the next part, of the process whose turn it is. It counts as a commit, for what may happen to it.

        Raises:
            OSError: There is no room. Dead: The process is no more.
        """

        def begin() -> None:
            carry_out()
            self._begins_part([*rows])

        try:
            self.commit([], begin)
        except Unwritable:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None

    def after(self, folder: Path, number: int, most: int) -> list[tuple[int, str, str]]:
        """Entries of the journal, as `runtime.journal.parts.entries_of_parts`."""
        if self.folder is not None:
            return entries_of_parts(folder, number, most)
        return [(at, *row) for at, row in enumerate(self.rows[number : number + most], number + 1)]

    def found(self, count: int) -> None:
        """The file has so many facts: those that were synced, and maybe those of the commit that nobody has been told of."""
        if self.doubtful and count == len(self.rows) + len(self.doubtful):
            self._synced(self.doubtful)
        self.doubtful = []
        assert count == len(self.rows), f"{len(self.rows)} facts were synced, and the file has {count}"

    def _synced(self, rows: list[Row]) -> None:
        self.rows += rows
        self.synced_s += [self.world.now_s] * len(rows)
        for row in rows:
            self.watch(row)

    def take(self) -> None:
        """A process is the one that writes; raises InputError where there is one."""
        process = self.world.current
        if self.holder is not None and not self.holder.dead and self.holder is not process:
            self.refused += 1
            raise InputError("a run is under way in this folder")
        self.holder = process

    def commit(self, rows: list[Row], carry_out: Callable[[], None]) -> None:
        """Make a commit of the process whose turn it is.

        Raises:
            Unwritable: there is no room. Dead: the process is no more.
        """
        process = self.world.current
        if process.dead:
            raise Dead
        self.commits += 1
        fault = self.faults.get(self.commits, "")
        if not fault and self.world.now_s < max(self.full_until_s, self.slow_until_s):
            fault = "full" if self.world.now_s < self.full_until_s else "slow"
        self._wait(process, SLOW_S if fault == "slow" else process.draw.choice(_SYNC_S))
        if fault == "full":
            raise Unwritable("journal: cannot be written: database or disk is full")
        if fault == "dies before":
            self._die(process)
        before = self._images() if fault == "torn" and rows else {}
        carry_out()
        if fault == "torn" and rows:
            self.doubtful = rows
            self._tear(process, before)
        self._synced(rows)
        if fault == "dies after":
            self._die(process)
        self._wait(process, process.draw.choice(_SYNC_S))

    def _wait(self, process: Process, seconds: float) -> None:
        strand = Strand.present
        if strand is not None and strand.process is process:
            strand.block(seconds)

    def _die(self, process: Process) -> None:
        process.kill()
        raise Dead

    def _images(self) -> dict[str, bytes]:
        assert self.folder is not None
        return {name: path.read_bytes() for name in self._files() if (path := self.folder / name).exists()}

    def _files(self) -> tuple[str, str]:
        assert self.folder is not None
        name = newest_part(self.folder).name
        return name, f"{name}-wal"

    def _tear(self, process: Process, before: dict[str, bytes]) -> None:
        """Of what the commit has written, some sectors are on the disk, in any order."""
        after, self.torn = self._images(), self.torn + 1
        self.left = {name: _torn(before.get(name, b""), content, process) for name, content in after.items()}
        self._die(process)

    def crash(self, database: sqlite3.Connection | None) -> None:
        """The process that writes is no more: what SQLite does when a file is closed has not been done."""
        assert self.folder is not None
        left, self.left = self.left or self._images(), None
        if database is not None:
            database.close()
        for name in (*self._files(), f"{newest_part(self.folder).name}-shm"):
            (self.folder / name).unlink(missing_ok=True)
        for name, content in left.items():
            (self.folder / name).write_bytes(content)
            os.chmod(self.folder / name, 0o600)


def _torn(before: bytes, after: bytes, process: Process) -> bytes:
    size = process.draw.choice([len(before), len(after), process.draw.randrange(len(before), len(after) + 1)])
    old = before.ljust(size, b"\0")
    parts = []
    for begin in range(0, size, _SECTOR):
        new = process.draw.random() < 0.5
        parts.append((after if new else old)[begin : begin + _SECTOR])
    return b"".join(parts)[:size]


class DiskJournal(Journal):
    """The journal on a simulated disk: in memory, or a real file whose commits are made when the disk makes them."""

    disk: Disk

    def __init__(self, path: Path, resume: bool = False, wait_s: float = 0.0) -> None:
        disk = self.disk = DiskJournal.of_world()
        disk.take()
        if disk.folder is not None:
            super().__init__(path, resume)
            disk.found(self.last_number)

            def crash() -> None:
                if not self._is_closed:
                    self._lock.close()
                    disk.crash(self._database)

            disk.world.current.ends.append(crash)
            return
        if not resume and disk.rows:
            raise InputError("is the journal of a run already; choose another folder")
        self.path, self._name = path, "journal"
        self._unwritten = []
        self.binds = self._binding = False
        self.recent = deque(maxlen=5000)
        self.flushed = lambda: None
        self.carried = len(disk.carried[-1])
        self.first_number, self.last_number = disk.begins[-1] + 1 - self.carried, len(disk.rows)

    _is_closed = False

    @staticmethod
    def of_world() -> Disk:
        """The disk that there is now."""
        return _disks[-1]

    def store(self, rows: list[Row]) -> None:
        if rows:
            self.disk.commit(rows, (lambda: None) if self.disk.folder is None else lambda: Journal.store(self, rows))

    def facts(self, known: int = 0) -> list[Fact]:
        return self.disk.facts()[known:]

    def begin_part(self, rows: Sequence[Row]) -> None:
        def begin() -> None:
            if self.disk.folder is not None:
                Journal.begin_part(self, rows)
            else:
                self.path, self.carried = part_after(self.path), len(rows)
                self.first_number = len(self.disk.rows) + 1 - self.carried

        self.disk.begin_part(rows, begin)

    def close(self) -> None:
        if self.disk.world.current.dead:
            raise Dead
        if self.disk.folder is not None:
            super().close()
        else:
            self.commit()
        self._is_closed = True
        self.disk.holder = None


_disks: list[Disk] = []


def enter(disk: Disk) -> None:
    """From now on a disk is the one of the world."""
    _disks[:] = [disk]


@cache
def _known(kind: str, body: str) -> Fact:
    return parsed(kind, body)


def _parsed(kind: str, body: str) -> Fact:
    """A fact as it is read; what is the same in many worlds is read once."""
    return _known(kind, body) if kind in ("Started", "Submitted") else parsed(kind, body)
