"""A command in a process group of its own, on cores of its own: signals are passed on to it, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import rollmux_client

from rollmux_env.errors import InputError

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_TERMINATES_S = 5.0  # that processes left behind have to end by themselves


class Signalled(BaseException):
    """A signal has come while no command runs."""

    def __init__(self, number: int) -> None:
        self.number = number


class ProcessGroup:
    """A command in a process group of its own, to which signals are passed on."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = self._killed = False
        self._early: list[int] = []  # signals that came while it was being started

    def pids(self) -> list[int]:
        """Its processes; before there are any, this one."""
        process = self._process
        return [os.getpid()] if process is None else rollmux_client.pids_of(process.pid) or [process.pid]

    def kill(self, why: str, say: Callable[[str], None]) -> None:
        """End it at once, for its devices may be given to others."""
        if self._process is not None and not self._killed:
            self._killed = True
            say(f"{why}: the command ends")
        self._signal(signal.SIGKILL)

    def run(self, environment: dict[str, str], cores: set[int]) -> int:
        """Run it to its end, and see that nothing of it stays.

        Raises:
            InputError: it cannot be started.
        """
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or own)
        self._starts = True
        try:
            stdin = subprocess.DEVNULL if sys.stdin is not None and sys.stdin.isatty() else None  # it would be stopped reading
            self._process = subprocess.Popen(self._words, env=environment, stdin=stdin, process_group=0)
        except OSError as error:
            raise InputError(f"{self._words[0]}: {error.strerror or error}") from None
        finally:
            os.sched_setaffinity(0, own)
            self._starts = False
        while self._early:
            self._signal(self._early.pop(0))
        try:
            status = self._process.wait()
            self._end_rest(self._process.pid)
        finally:
            self._process = None
        return status if status >= 0 else 128 - status

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While it goes on, signals to this process are passed on to it; without it they end what is waited for."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._process is not None:
                self._signal(number)
            elif self._starts:
                self._early.append(number)
            elif number != signal.SIGCONT:
                raise Signalled(number)

        before = {number: signal.signal(number, handle) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _end_rest(self, group: int) -> None:
        """End what the command has left behind: whose lease is given back holds nothing."""
        until_s = time.monotonic() + _TERMINATES_S
        if rollmux_client.pids_of(group):
            self._signal(signal.SIGTERM)
        while rollmux_client.pids_of(group):
            if time.monotonic() > until_s:
                self._signal(signal.SIGKILL)
            time.sleep(0.02)
