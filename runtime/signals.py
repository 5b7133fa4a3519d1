"""Ctrl-C and SIGTERM, from before Ray is started until everything is cleaned up: none is lost, and none raises inside a library.

An exception from a signal handler may be swallowed by an `except` clause, by a callback of a fork, or abort C++ code. RollMux's
handler therefore raises nothing: interrupts are counted by what Python writes to a file descriptor for every signal.
KeyboardInterrupt is raised where this process checks the count (`check_signals`): between its steps, and several times a second
during every wait. Code that installs its own handlers, as Ray does when it starts and ends, runs while the signals are masked
(`masked`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic, sleep
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOKS_S = 0.2  # interval of checks during a wait for an actor


class SignalListener:
    """Counter of interrupts.

    Attributes:
        allowed: Number of interrupts that do not raise, because the caller checks their number.
    """

    def __init__(self) -> None:
        self.allowed = 0
        self._counts: Counter[int] = Counter()
        self._written, self._read = socket.socketpair()
        self._written.setblocking(False)
        self._read.setblocking(False)
        self._before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)

    def count(self) -> int:
        """Return how many signals have come."""
        self._read_numbers()
        return sum(self._counts[number] for number in _SIGNALS)

    def take_hangups(self) -> int:
        """Return how many hang-ups have come since the last call."""
        self._read_numbers()
        return self._counts.pop(signal.SIGHUP, 0)

    def _read_numbers(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while numbers := self._read.recv(4096):
                self._counts.update(numbers)

    def check(self) -> None:
        """Raise KeyboardInterrupt if more signals have come than are allowed."""
        if self.count() > self.allowed:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Give the signals back to the descriptor that had them before."""
        signal.set_wakeup_fd(self._before)
        self._written.close()
        self._read.close()


_listener: SignalListener | None = None
_masks = 0  # nested `masked` blocks


def _handle(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal has been counted already, and an exception here could be lost."""


def _forked() -> None:
    """Reset signals in a forked child that has not started its own program.

    The child must not write to this process's descriptor, and must be possible to end. SIGINT stays masked if it was, because Ray
    wants that for its processes. The child leaves this session: a signal to the process group (as from `timeout`) is for this
    process to answer, and Ray aborts this process if Ray's own die while it joins them.
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
    """Count interrupts, so that `check_signals` answers them. Only in the main thread; a nested call has no effect.

    Raises:
        KeyboardInterrupt: At the end, if there were more interrupts than allowed and none was answered.
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
    except SystemExit:  # a handler of a library may raise this
        listener.check()
        raise
    finally:
        _listener = None
        for number, handler in before.items():
            signal.signal(number, handler)
        listener.close()


def install_handlers() -> None:
    """Install RollMux's handlers, again if a library has replaced them."""
    if _listener is not None:
        for number in _SIGNALS:
            signal.signal(number, _handle)


def check_signals() -> None:
    """Install RollMux's handlers again, and end here if the user has asked for it.

    Raises:
        KeyboardInterrupt: If there were more interrupts than allowed.
    """
    if _listener is not None:
        install_handlers()
        _listener.check()


def result_of(call: Any, timeout_s: float = inf) -> Any:
    """Return the result of a call of a Ray actor. The user may interrupt the wait.

    Args:
        call: Reference of the call.
        timeout_s: Longest wait, in seconds.

    Raises:
        KeyboardInterrupt: If there were more interrupts than allowed.
        GetTimeoutError: If the call takes longer. Other errors are those of `ray.get`.
    """
    import ray

    until_s = monotonic() + timeout_s
    while not ray.wait([call], timeout=_LOOKS_S)[0]:
        check_signals()
        if monotonic() > until_s:
            raise ray.exceptions.GetTimeoutError(f"no answer after {timeout_s:g} s")
    return ray.get(call)


def pause(seconds: float) -> None:
    """Wait. The user may interrupt the wait.

    Args:
        seconds: Length of the wait.

    Raises:
        KeyboardInterrupt: If there were more interrupts than allowed.
    """
    until_s = monotonic() + seconds
    check_signals()
    while (left_s := until_s - monotonic()) > 0:
        sleep(min(left_s, _LOOKS_S))
        check_signals()


@contextlib.contextmanager
def masked() -> Iterator[None]:
    """Block both signals in this thread and in threads that are started meanwhile; afterwards, handlers are as before.

    A thread that exists already may take a signal. If the handler of a library raises then, that ends the block and is raised.
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
    except BaseException:  # Python has run the present handler for a pending signal, and not installed the other one
        signal.signal(number, handler)
        raise


@contextlib.contextmanager
def allowing(interrupts: int) -> Iterator[Callable[[], int]]:
    """Allow a number of interrupts that do not raise; they are answered at the end.

    Args:
        interrupts: The number.

    Yields:
        Function that returns the number of interrupts so far.
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
    """Count SIGHUP instead of ending this process.

    asyncio's `add_signal_handler` cannot be used: its loop takes over the file descriptor, and interrupts are lost.

    Yields:
        Function that returns the number of hangups since its last call.
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
    """Protect a cleanup from interrupts; the next check answers them."""
    with listening(), masked():
        yield
