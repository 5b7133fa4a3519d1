"""The journal as clients read it: entries by number, and a wait for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from runtime.coordinator.run_log import RunLog
from runtime.journal.parts import entries_of_parts

MOST = 1000  # entries per answer
_TOGETHER_S = 0.25  # time after which entries that wait for a common commit are committed for a reader


class JournalEntry(NamedTuple):
    """An entry of the journal.

    Attributes:
        number: Position in the journal, from 1.
        kind: Kind of the fact.
        body: The fact as JSON.
    """

    number: int
    kind: str
    body: str


class Events:
    """Reader of the durable entries of a journal that is being written.

    Args:
        log: Log that writes the journal.
        folder: Folder of the journal.
    """

    def __init__(self, log: RunLog, folder: Path) -> None:
        self._log = log
        self._journal = journal = log.journal
        self._folder = folder
        self._more = asyncio.Event()
        self._flushed_s = 0.0
        journal.flushed = self._notify

    def _notify(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def after(self, number: int, wait_s: float) -> list[JournalEntry]:
        """Return the entries after a number, oldest first, `MOST` of them at most.

        Args:
            number: Number of the last known entry, or 0.
            wait_s: Longest wait for an entry if there is none, in seconds.

        Raises:
            InputError: If the journal cannot be read; one line.
        """
        until_s = monotonic() + wait_s
        while number >= self._journal.last_number and (left_s := until_s - monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), min(left_s, _TOGETHER_S) if self._journal.has_unwritten else left_s)
            if number >= self._journal.last_number:
                self._bring()
        recent = self._journal.recent
        if not recent or recent[0][0] > number + 1:
            rows = await asyncio.to_thread(entries_of_parts, self._folder, number, MOST)
        else:
            first = number + 1 - recent[0][0]
            rows = [*islice(recent, first, first + MOST)]
        return [JournalEntry(*row) for row in rows]

    def _bring(self) -> None:
        """Commit entries that wait for a common commit, at most once in `_TOGETHER_S` for all readers together."""
        if self._journal.has_unwritten and monotonic() - self._flushed_s > _TOGETHER_S:
            self._flushed_s = monotonic()
            self._log.commit()
