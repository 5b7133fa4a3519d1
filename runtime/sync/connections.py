"""What a member of a sync has open, to be ended at once when something fails."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from threading import Lock

from rollmux_env.validation_errors import one_line
from runtime.residency.layout import Memory
from runtime.sync import shared

TIMEOUT_S = 600.0
"""For one that hangs; one that has died is noticed at once."""


class Connections:
    """All that a member has open during a sync. When one stream fails all are ended, and leaving the block raises its problem."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._memories: list[Memory] = []
        self._lock = Lock()
        self._problem: RuntimeError | None = None

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            one.close()
        for memory in self._memories:
            os.close(memory.file)
        if self._problem is not None:
            raise self._problem

    def add(self, one: socket.socket) -> socket.socket:
        one.settimeout(TIMEOUT_S)
        with self._lock:
            self._open.append(one)
            if self._problem is not None:
                _end(one)
        return one

    def open_offer(self, offer: bytes) -> Memory | None:
        """The shared memory that a header offers, if it can be reached."""
        memory = shared.open_offer(offer)
        if memory is not None:
            self._memories.append(memory)
        return memory

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Name what fails in this block, and end all connections then."""
        try:
            yield
        except Exception as error:
            with self._lock:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._problem = self._problem or RuntimeError(f"{what}: {one_line(reason, 200)}")
                for one in self._open:
                    _end(one)


def _end(one: socket.socket) -> None:
    """End a connection for both sides and for the threads that wait on it; whoever opened it closes it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
