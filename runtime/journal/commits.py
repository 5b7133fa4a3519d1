"""Commits of a journal in a separate thread, so that the event loop of a run never waits for a disk.

All facts that one turn of the loop adds to the journal form one transaction. While a transaction is in progress, facts collect for
the next one, so that many waiting tasks share a commit when the disk or the cores are slow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from runtime.journal.write import Journal, Row
from runtime.short_slices import ask_for_short_slices

_Aside = Callable[[], None]
Result = TypeVar("Result")


class Commits:
    """Commits a journal, one transaction after the other. Belongs to the event loop in which it was created.

    Args:
        journal: The journal. No one else may commit to it from now on.
        ended: Function that is called in the loop when a commit has ended, with its error or None. After an error the facts are in
            the journal's queue again, until `schedule` is called.
    """

    def __init__(self, journal: Journal, ended: Callable[[BaseException | None], None]) -> None:
        self._journal, self._ended = journal, ended
        self._loop = asyncio.get_running_loop()
        self._next: list[asyncio.Future[None]] = []  # waiters for the facts in the journal's queue
        self._under_way: list[asyncio.Future[None]] | None = None  # waiters for the commit in progress, or None without one
        self._asides: list[_Aside] = []
        self._is_due = self._is_closed = False
        self._work: SimpleQueue[tuple[list[Row], list[_Aside]] | None] = SimpleQueue()
        self._thread = Thread(target=self._carry_out_all, name="rollmux-journal", daemon=True)
        self._thread.start()

    def schedule(self) -> None:
        """Commit at the end of this turn of the loop, or after the commit in progress."""
        if not self._is_due and not self._is_closed and self._under_way is None:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def run_after_commit(self, work: _Aside) -> None:
        """Run a function in the thread after the next commit. It may wait for a disk, and its end is not waited for."""
        self._asides.append(work)

    async def run_between(self, work: Callable[[], Result]) -> Result:
        """Run a function in the thread, while no commit is made, and return its result."""
        result: asyncio.Future[Result] = self._loop.create_future()

        def carry_out() -> None:
            try:
                value = work()
            except BaseException as error:
                self._call_soon(_set_exception, result, error)
            else:
                self._call_soon(_set_result, result, value)

        self._asides.append(carry_out)
        self.schedule()
        return await result

    async def durable(self) -> None:
        """Wait until everything that is in the journal now is on the disk.

        Raises:
            BaseException: The error that was passed to `give_up`, or that `close` met.
        """
        waiting = self._next if self._journal.has_unwritten else self._under_way
        if waiting is None:
            return
        waits = self._loop.create_future()
        waiting.append(waits)
        if waiting is self._next:
            self.schedule()
        await waits

    def give_up(self, error: BaseException) -> None:
        """Raise an error in all tasks that wait for facts which could not be written."""
        waiting, self._next = self._next, []
        for waits in waiting:
            _set_exception(waits, error)

    async def close(self) -> None:
        """Make the last commit. Afterwards no task can wait for a commit any more.

        Raises:
            InputError: The journal cannot be written.
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
        """Run all commits, as the main function of the thread."""
        ask_for_short_slices()
        while (work := self._work.get()) is not None:
            rows, asides = work
            error = self._carry_out(rows)
            self._call_soon(self._end, rows, error)
            for aside in asides:
                aside()

    def _call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # raised if the loop has been closed
            self._loop.call_soon_threadsafe(function, *arguments)

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
            self.schedule()

    @staticmethod
    def _wake(waiting: list[asyncio.Future[None]]) -> None:
        for waits in waiting:
            _set_result(waits, None)

    def _join(self) -> None:
        self._work.put(None)
        self._thread.join()


def _set_result(waits: asyncio.Future[Result], value: Result) -> None:
    if not waits.done():
        waits.set_result(value)


def _set_exception(waits: asyncio.Future[Any], error: BaseException) -> None:
    if not waits.done():
        waits.set_exception(error)
