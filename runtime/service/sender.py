"""Delivery of notices: in a separate thread, one after the other, and repeated a bounded number of times."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, ClassVar

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line

DELAYS_S = (1.0, 5.0, 25.0, 125.0, 600.0)  # waits before a delivery is repeated
_MOST = 1000  # notices that wait for their delivery
_LONGEST = 200  # characters of what went wrong


class Sender(ABC):
    """Sender of notices to one receiver. None is delivered while the service has no such receiver.

    Args:
        folder: Folder of the service.
        say: Callback, from another thread, for a line about a notice that could not be delivered.
        delays_s: Waits before a delivery is repeated, in seconds. After the last one the notice is dropped.
    """

    name: ClassVar[str]
    file: ClassVar[str]

    def __init__(self, folder: Path, say: Callable[[str], None], delays_s: tuple[float, ...] = DELAYS_S) -> None:
        self._folder, self._say, self._delays_s = folder, say, delays_s
        self._queue: Queue[bytes | None] = Queue(_MOST)
        self._closing = Event()
        self._thread: Thread | None = None
        self._taken = self._handled = 0  # notices; the first is changed by callers, the second by the thread

    @abstractmethod
    def send(self, body: bytes) -> tuple[str, bool]:
        """Deliver a notice to the present receiver, if there is one.

        Args:
            body: The notice as JSON.

        Returns:
            Reason why it was not taken, or an empty text, and whether it may be taken later.

        Raises:
            InputError: If the receiver's file cannot be read; one line.
        """

    @property
    def is_idle(self) -> bool:
        """Whether every notice has been delivered or dropped."""
        return self._taken == self._handled

    def put(self, notice: Mapping[str, Any]) -> None:
        """Deliver a notice soon. If too many wait already, it is dropped."""
        if not os.path.lexists(self._folder / self.file):
            return
        if self._thread is None:
            self._thread = Thread(target=self._deliver_all, name=f"rollmux-{self.name}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(json.dumps(notice).encode())
        except Full:
            self._say(f"{self.name}: {_MOST} notices wait; one is dropped: {notice.get('text', '')}")
        else:
            self._taken += 1

    def close(self) -> None:
        """End after the delivery in progress. What waits is dropped."""
        self._closing.set()
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)

    def _deliver_all(self) -> None:
        while (body := self._queue.get()) is not None and not self._closing.is_set():
            try:
                self._deliver(body)
            except Exception as error:  # of a receiver's library; the next notices are still to be delivered
                self._say(f"{self.name}: a notice is dropped: {one_line(f'{type(error).__name__}: {error}', _LONGEST)}")
            finally:
                self._handled += 1

    def _deliver(self, body: bytes) -> None:
        for delay_s in (*self._delays_s, None):
            try:
                problem, again = self.send(body)
            except InputError as error:
                problem, again = str(error), False
            if not problem:
                return
            if not again or delay_s is None:
                self._say(f"{self.name}: a notice is dropped: {problem}")
                return
            if self._closing.wait(delay_s):
                return
