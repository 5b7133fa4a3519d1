"""The journal from the outside: its entries by number, and waiting for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from runtime.coordinator.run_log import RunLog
from runtime.journal.read import entries_after
from runtime.journal.write import JOURNAL

MOST = 1000  # entries of an answer
_TOGETHER_S = 0.25  # that entries which may wait for others are waited for


class Entry(NamedTuple):
    """An entry of the journal: its number, from 1, the kind of its fact, and the fact as JSON."""

    number: int
    kind: str
    body: str


class Events:
    """Hands out what is on the disk.

    Args:
        log: whose journal is written here. folder: where it is.
    """

    def __init__(self, log: RunLog, folder: Path) -> None:
        self._log = log
        self._journal = journal = log.journal
        self._path = folder / JOURNAL
        self._more = asyncio.Event()
        self._flushed_s = 0.0
        journal.flushed = self._notify

    def _notify(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def after(self, number: int, wait_s: float) -> list[Entry]:
        """Entries after a number, oldest first, at most `MOST`; none where there are none within the time to wait.

        Raises:
            InputError: the journal cannot be read; one line.
        """
        until_s = monotonic() + wait_s
        while number >= self._journal.last_number and (left_s := until_s - monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), min(left_s, _TOGETHER_S) if self._journal.unwritten else left_s)
            if number >= self._journal.last_number:
                self._bring()
        recent = self._journal.recent
        if not recent or recent[0][0] > number + 1:
            rows = await asyncio.to_thread(entries_after, self._path, number, MOST)
        else:
            first = number + 1 - recent[0][0]
            rows = [*islice(recent, first, first + MOST)]
        return [Entry(*row) for row in rows]

    def _bring(self) -> None:
        """Bring to the disk what has waited for others, as often as that may be, however many want to read it."""
        if self._journal.unwritten and monotonic() - self._flushed_s > _TOGETHER_S:
            self._flushed_s = monotonic()
            self._log.commit()
