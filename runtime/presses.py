"""Ctrl-C and SIGTERM, from before Ray is started until all is cleaned up: no press is lost.

Ray takes the handlers of signals for itself, and what a handler raises may end in somebody's `except`. So presses are counted by
what Python writes to a file descriptor for every signal, whoever handles it, and the count is looked at after every step (`look`).
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from math import inf
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Ear:
    """Counts presses while it listens.

    Attributes:
        allowed: so many presses end nothing at once, because somebody looks at their number.
    """

    def __init__(self) -> None:
        self.allowed: float = 0
        self._count = 0
        self._written, self._read = socket.socketpair()
        self._written.setblocking(False)
        self._read.setblocking(False)
        self._before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)

    def count(self) -> int:
        with contextlib.suppress(BlockingIOError):
            while numbers := self._read.recv(4096):
                self._count += sum(number in _SIGNALS for number in numbers)
        return self._count

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.look()

    def look(self) -> None:
        if self.count() > self.allowed:
            raise KeyboardInterrupt

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._written.close()
        self._read.close()


_ear: _Ear | None = None


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """From now on a press raises KeyboardInterrupt, unless it is allowed for. In the main thread; within another it adds nothing.

    Raises:
        KeyboardInterrupt: the user has pressed more often than was allowed for, even if Ray made something else of it.
    """
    global _ear
    if _ear is not None:
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ear = _ear = _Ear()
    try:
        take()
        yield
    except SystemExit:  # which Ray's handler of SIGTERM raises
        ear.look()
        raise
    finally:
        _ear = None
        for number, handler in before.items():
            signal.signal(number, handler)
        ear.close()


def take() -> None:
    """Take the signals, or take them back from whoever has taken them meanwhile."""
    if _ear is not None:
        for number in _SIGNALS:
            signal.signal(number, _ear.handle)


def look() -> None:
    """A step is over: listen on, and end here if the user has asked for it.

    Raises:
        KeyboardInterrupt: there were more presses than are allowed for.
    """
    if _ear is not None:
        take()
        _ear.look()


@contextlib.contextmanager
def allowing(presses: float) -> Iterator[Callable[[], int]]:
    """So many presses end nothing at once.

    Returns:
        Their number so far, when it is asked for.
    """
    with heard():
        assert _ear is not None
        ear, before = _ear, _ear.allowed
        ear.allowed = presses
        try:
            take()
            yield ear.count
        finally:
            ear.allowed = before


def undisturbed() -> contextlib.AbstractContextManager[Callable[[], int]]:
    """No press interrupts what cleans up."""
    return allowing(inf)
