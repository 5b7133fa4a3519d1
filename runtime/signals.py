"""Ctrl-C and SIGTERM, from before Ray is started until all is cleaned up: no press is lost, and none raises inside a library.

What a handler raises may end in somebody's `except`, in a callback of a fork, or in C++ code that aborts. So our handler raises
nothing: interrupts are counted by what Python writes to a file descriptor for every signal, and KeyboardInterrupt is raised where
this process looks at the count (`check_signals`), which is between its steps and several times a second wherever it waits. Code
that installs handlers of its own, as Ray does when it starts and ends, runs while the signals are masked (`masked`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOKS_S = 0.2  # between looks at the count while an actor is waited for


class SignalListener:
    """Counts interrupts while it listens.

    Attributes:
        allowed: so many interrupts end nothing at once, because somebody looks at their number.
    """

    def __init__(self) -> None:
        self.allowed = 0
        self._counts: Counter[int] = Counter()
        self._written, self._read = socket.socketpair()
        self._written.setblocking(False)
        self._read.setblocking(False)
        self._before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)

    def count(self) -> int:
        self._read_numbers()
        return sum(self._counts[number] for number in _SIGNALS)

    def take_hangups(self) -> int:
        self._read_numbers()
        return self._counts.pop(signal.SIGHUP, 0)

    def _read_numbers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while numbers := self._read.recv(4096):
                self._counts.update(numbers)

    def check(self) -> None:
        if self.count() > self.allowed:
            raise KeyboardInterrupt

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._written.close()
        self._read.close()


_listener: SignalListener | None = None
_masks = 0  # that are in force


def _handle(number: int, frame: FrameType | None) -> None:
    """Nothing is raised here: the press has been counted already."""


def _forked() -> None:
    """A child that has not begun its own program: it must not write to our descriptor, and can be ended. SIGINT stays masked where
    it was, as Ray wants it for its processes. It leaves our session: a signal to our group (`timeout` sends such) is for us to
    answer, and this process is aborted where Ray's own die while it joins them.
    """
    if _listener is not None:
        os.setsid()
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
    if _listener is not None or _masks:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """From now on interrupts are counted, and `check_signals` answers them. In the main thread; within another it adds nothing.

    Raises:
        KeyboardInterrupt: at its end, the user has pressed more often than was allowed for and nobody has answered.
    """
    global _listener
    if _listener is not None:
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    listener = _listener = SignalListener()
    try:
        install_handlers()
        yield
        listener.check()
    except SystemExit:  # which a handler of somebody else may raise
        listener.check()
        raise
    finally:
        _listener = None
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()


def install_handlers() -> None:
    """Take the signals, or take them back from whoever has taken them meanwhile."""
    if _listener is not None:
        for number in _SIGNALS:
            signal.signal(number, _handle)


def check_signals() -> None:
    """A step is over: listen on, and end here if the user has asked for it.

    Raises:
        KeyboardInterrupt: there were more interrupts than are allowed for.
    """
    if _listener is not None:
        install_handlers()
        _listener.check()


def result_of(call: Any, timeout_s: float = inf) -> Any:
    """What a call of a Ray actor gives, so that the user may end the wait.

    Raises:
        KeyboardInterrupt: there were more interrupts than are allowed for. GetTimeoutError: it takes longer. Else as `ray.get`.
    """
    import ray

    until_s = monotonic() + timeout_s
    while not ray.wait([call], timeout=_LOOKS_S)[0]:
        check_signals()
        if monotonic() > until_s:
            raise ray.exceptions.GetTimeoutError(f"no answer after {timeout_s:g} s")
    return ray.get(call)


@contextlib.contextmanager
def masked() -> Iterator[None]:
    """Both signals wait until this is over, in this thread and in those that are started meanwhile; handlers are then as before.

    A thread that is there already may take one. What a handler of somebody else then raises ends this, and is raised.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    with contextlib.ExitStack() as after:
        _count_masks(1)
        after.callback(_count_masks, -1)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        after.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            after.callback(_restore, number, handler)
        yield


def _count_masks(more: int) -> None:
    global _masks
    _masks += more


def _restore(number: int, handler: Any) -> None:
    try:
        signal.signal(number, handler)
    except BaseException:  # of the handler that was there: Python has run it first, and has not installed the other one
        signal.signal(number, handler)
        raise


@contextlib.contextmanager
def allowing(interrupts: int) -> Iterator[Callable[[], int]]:
    """So many interrupts end nothing at once, and are answered when it is over.

    Returns:
        Their number so far, when it is asked for.
    """
    with listening():
        assert _listener is not None
        listener, before = _listener, _listener.allowed
        listener.allowed = interrupts
        try:
            install_handlers()
            yield listener.count
        finally:
            listener.allowed = max(before, min(interrupts, listener.count()))


@contextlib.contextmanager
def hangups() -> Iterator[Callable[[], int]]:
    """SIGHUP ends nothing meanwhile, and is counted as interrupts are.

    A handler of asyncio's (`add_signal_handler`) does not do for it: its loop takes the file descriptor, and interrupts are lost.

    Returns:
        How many have come since it was last asked.
    """
    with listening():
        assert _listener is not None
        before = signal.signal(signal.SIGHUP, _handle)
        try:
            yield _listener.take_hangups
        finally:
            signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """No press interrupts what cleans up; the next look answers it."""
    with listening(), masked():
        yield
