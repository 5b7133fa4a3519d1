"""Commits of a journal in a thread of its own, so that the loop of a run never waits for a disk.

What one turn of the loop has put into the journal is one transaction. While one is under way facts gather for the next, so that
many who wait share a commit when the disk or the cores are slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from runtime.journal.write import Journal, Row
from runtime.short_slices import ask_for_short_slices

_Aside = Callable[[], None]


class Commits:
    """Makes the commits of a journal, one after the other. It belongs to the loop in which it was made.

    Args:
        journal: from now on nobody else commits to it.
        ended: is called in the loop when a commit has ended, with what went wrong. What was to be written is in the journal's
            queue again then, until `soon` is called.
    """

    def __init__(self, journal: Journal, ended: Callable[[BaseException | None], None]) -> None:
        self._journal, self._ended = journal, ended
        self._loop = asyncio.get_running_loop()
        self._next: list[asyncio.Future[None]] = []  # who waits for what is in the journal's queue
        self._under_way: list[asyncio.Future[None]] | None = None  # and for the commit that is under way, if there is one
        self._asides: list[_Aside] = []
        self._is_due = self._is_closed = False
        self._work: SimpleQueue[tuple[list[Row], list[_Aside]] | None] = SimpleQueue()
        self._thread = Thread(target=self._carry_out_all, name="rollmux-journal", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Commit when this turn of the loop is over, or the commit that is under way."""
        if not self._is_due and not self._is_closed and self._under_way is None:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def aside(self, work: _Aside) -> None:
        """Do something that may wait for a disk, and that nobody waits for, behind the next commit."""
        self._asides.append(work)

    async def durable(self) -> None:
        """Wait until all that is in the journal now is on the disk.

        Raises:
            BaseException: what `give_up` was told, or `close` has met.
        """
        waiting = self._next if self._journal.unwritten else self._under_way
        if waiting is None:
            return
        waits = self._loop.create_future()
        waiting.append(waits)
        if waiting is self._next:
            self.soon()
        await waits

    def give_up(self, error: BaseException) -> None:
        """Let nobody wait any more for what could not be written."""
        waiting, self._next = self._next, []
        for waits in waiting:
            if not waits.done():
                waits.set_exception(error)

    async def close(self) -> None:
        """Make the last commit, on which nothing can be waited for any more.

        Raises:
            InputError: the journal cannot be written; one line.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._join)
        try:
            await asyncio.to_thread(self._journal.commit)
        except BaseException as error:
            self.give_up(error)
            raise
        self._wake(self._next)

    def _begin(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        self._under_way, self._next = self._next, []
        asides, self._asides = self._asides, []
        self._hand_over(self._journal.take(), asides)

    def _hand_over(self, rows: list[Row], asides: list[_Aside]) -> None:
        self._work.put((rows, asides))

    def _carry_out_all(self) -> None:
        """What the thread does."""
        ask_for_short_slices()
        while (work := self._work.get()) is not None:
            rows, asides = work
            error = self._carry_out(rows)
            with contextlib.suppress(RuntimeError):  # the loop is no more
                self._loop.call_soon_threadsafe(self._end, rows, error)
            for aside in asides:
                aside()

    def _carry_out(self, rows: list[Row]) -> BaseException | None:
        try:
            self._journal.store(rows)
        except BaseException as error:
            return error
        return None

    def _end(self, rows: list[Row], error: BaseException | None) -> None:
        waiting, self._under_way = self._under_way or [], None
        if error is None:
            self._journal.stored(rows)
            self._wake(waiting)
        else:
            self._journal.put_back(rows)
            self._next = waiting + self._next
        self._ended(error)
        if error is None and (self._journal.is_due or self._next or self._asides):
            self.soon()

    @staticmethod
    def _wake(waiting: list[asyncio.Future[None]]) -> None:
        for waits in waiting:
            if not waits.done():
                waits.set_result(None)

    def _join(self) -> None:
        self._work.put(None)
        self._thread.join()
