"""What a member of a sync has open, to be ended at once when something fails, and the connections that come to it.

Anybody may reach an inbox: headers are read side by side, so that nobody holds up others. A connection has so long for its whole
header, and so many may be without one at a time: then the oldest has to go, since the header of one that belongs here comes right
behind it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Iterator
from threading import Lock
from time import monotonic

from rollmux_env.validation_errors import one_line
from runtime.residency.layout import Memory
from runtime.sync import wire

_HEADER_S = 10.0  # for the whole header of a connection
_MOST = 128  # connections without a header

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
        memory = wire.open_offer(offer)
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


class Arrivals:
    """What comes to a listening socket, while the block lasts.

    Args:
        server: listens. size: bytes of a header.
    """

    def __init__(self, server: socket.socket, size: int) -> None:
        self._server, self._size = server, size
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}  # until when, and its header so far; the oldest first
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for one in self._waiting:
            one.close()

    def next(self, until_s: float) -> tuple[socket.socket, bytes]:
        """The next connection whose header is complete, and the header; whoever sent it.

        Args:
            until_s: on `time.monotonic`'s clock.

        Raises:
            TimeoutError: there was none until then. OSError: the server has ended.
        """
        while (now_s := monotonic()) < until_s:
            while self._waiting and (oldest := next(iter(self._waiting))) and self._waiting[oldest][0] <= now_s:
                self._drop(oldest)
            soonest_s = next(iter(self._waiting.values()))[0] if self._waiting else until_s
            for key, _ in self._selector.select(max(min(soonest_s, until_s) - now_s, 0.0)):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._server:
                    self._accept()
                elif one in self._waiting and (header := self._read(one)) is not None:
                    return one, header
        raise TimeoutError("timed out")

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone again
            one = self._server.accept()[0]
            one.setblocking(False)
            self._waiting[one] = monotonic() + _HEADER_S, bytearray()
            self._selector.register(one, selectors.EVENT_READ)
            if len(self._waiting) > _MOST:
                self._drop(next(iter(self._waiting)))

    def _read(self, one: socket.socket) -> bytes | None:
        """Read on in a connection's header; the header when it is complete, and the connection is the caller's then."""
        header = self._waiting[one][1]
        try:
            data = one.recv(self._size - len(header))
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        header += data
        if not data:
            self._drop(one)
        elif len(header) == self._size:
            self._selector.unregister(one)
            del self._waiting[one]
            return bytes(header)
        return None

    def _drop(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._waiting[one]
        one.close()
