"""The command of `rollmux exec`, with all processes that belong to its lease.

The command runs in a separate process group, to which signals are forwarded. Launchers such as torchrun start their ranks in
other sessions. This process therefore adopts descendants that lose their parent (a subreaper of Linux), and looks for processes
whose environment carries the lease. When the command has ended, no process of the lease is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from rollmux_processes import LEASE, LeaseProcesses, processes

from rollmux_env.errors import InputError
from runtime.machines.job_processes import end_all

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_LOOKS_S = 0.05
_TERMINATES_S = 5.0  # time between SIGTERM and SIGKILL for processes left behind
_DIES_S = 60.0  # time after which a process that was killed counts as one that does not end
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class NotNow(InputError):
    """The command cannot run now, because the service does not answer or the lease is lost. It may be started again."""

    exit_status = os.EX_TEMPFAIL


class Signalled(BaseException):
    """Interruption by a signal while no command runs."""

    def __init__(self, number: int) -> None:
        self.number = number


class LeasedCommand:
    """A command and its descendants.

    Args:
        words: The command with its arguments.
        say: Callback for a line about processes that are ended.

    Attributes:
        may_live: Whether processes of the command may live, so that its lease must not be given back.
    """

    def __init__(self, words: Sequence[str], say: Callable[[str], None]) -> None:
        self._words, self._say = words, say
        self.may_live = False
        self._process: subprocess.Popen[bytes] | None = None
        self._mine = LeaseProcesses()
        self._before: set[int] = set()  # children of this process that existed before the command
        self._starts = False
        self._lost, self._lost_s = "", 0.0  # reason why the lease is lost, and time of the first SIGKILL because of it
        self._says_hangs = False  # whether a process that does not end was named
        self._early: list[int] = []  # signals that arrived while the command was being started

    def pids(self) -> Collection[int]:
        """Return the ids of the command's processes, or of this process if there are none."""
        return self._find() or {os.getpid()}

    @property
    def is_lost(self) -> bool:
        """Whether the lease was lost before the command was started."""
        return bool(self._lost)

    def kill(self, why: str) -> None:
        """End all processes of the command at once, since its devices may be granted to other jobs.

        Args:
            why: Reason, for the line that is printed.
        """
        pids = self._find()
        self._send(pids, signal.SIGKILL)  # first, because writing the line may take long
        if not self._lost:
            self._lost, self._lost_s = why, time.monotonic()
            if self._process is not None:
                self._say(f"{why}: the command ends")
        elif pids and not self._says_hangs and time.monotonic() - self._lost_s > _DIES_S:
            self._says_hangs = True
            self._say(f"process {min(pids)} of the command does not end, and exec waits for it")

    def run(self, environment: Mapping[str, str], cores: set[int]) -> tuple[int, str]:
        """Run the command to its end, and end the processes that it has left behind.

        Args:
            environment: Environment of the command, with the lease.
            cores: Cores to which the command is bound, or an empty set for all.

        Returns:
            Exit status, or 128 plus the number of the signal that ended the command; and the processes that cannot be ended, in
            words, empty if there are none.

        Raises:
            InputError: If the command cannot be started; one line.
            NotNow: If its lease is lost already; one line.
        """
        self._mine.leases.add(environment[LEASE])
        with _adopting_orphans():
            self._start(environment, cores)
            assert self._process is not None
            try:
                # The pid stays reserved until the rest has ended. No blocking call waits: if another thread takes a signal, as may
                # happen when SIGTERM and SIGCONT come at once, the call goes on and the signal would not be passed on.
                while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                    time.sleep(_LOOKS_S)
                left = self._end_rest()
                status = self._process.wait()
                if not left and self._has_hidden_child():
                    left = "a process that cannot be seen"
                self.may_live = bool(left)
            finally:
                self._process, self._lost = None, ""
        return status if status >= 0 else 128 - status, left

    def _start(self, environment: Mapping[str, str], cores: set[int]) -> None:
        if self._lost:
            raise NotNow(f"{self._lost}: the command is not started")
        own = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, cores or own)
        except OSError as error:
            names = ", ".join(map(str, sorted(cores)))
            raise InputError(f"the command cannot run on the cores of its nodes, {names}: {error.strerror}") from None
        self._before = {pid for pid, one in processes().items() if one.parent == os.getpid()}
        self._starts = True
        try:
            stdin = (
                subprocess.DEVNULL if sys.stdin is not None and sys.stdin.isatty() else None
            )  # reading a terminal would stop a background group
            self._process = subprocess.Popen(self._words, env=environment, stdin=stdin, process_group=0)
            self.may_live = True
        except OSError as error:
            raise InputError(f"{self._words[0]}: {error.strerror or error}") from None
        finally:
            os.sched_setaffinity(0, own)
            self._starts = False
        while self._early:
            self._forward(self._early.pop(0))

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Forward signals from this process to the command. While there is no command, a signal raises `Signalled`.

        A signal that is ignored already, for example by `nohup`, stays ignored: the command inherits that.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self._process is not None:
                self._forward(number)
            elif self._starts:
                self._early.append(number)
            elif number != signal.SIGCONT:
                raise Signalled(number)

        numbers = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return
            except PermissionError:
                name = signal.Signals(number).name
                with suppress(RuntimeError):  # the signal has interrupted the printing of another line
                    self._say(f"{name} cannot be passed on to the command, which belongs to another user")

    def _find(self) -> set[int]:
        """Return the ids of the command's living processes."""
        process = self._process  # another thread may set it to None
        if process is None:
            return set()
        table = processes()
        children = {pid for pid, one in table.items() if one.parent == os.getpid()} - self._before
        for pid in children - {process.pid}:
            if table[pid].is_zombie:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return self._mine.find(table, children, process.pid)

    def _end_rest(self) -> str:
        """End the processes that the command has left behind, and return those that cannot be ended, in words."""
        rest = self._find()
        if rest:
            self._say(f"the command has ended; what it has left ends too: process {', '.join(map(str, sorted(rest)))}")
        self._send(rest, signal.SIGTERM)
        left = end_all(lambda: sorted(self._find()), _TERMINATES_S)
        return f"process {', '.join(map(str, left))}" if left else ""

    def _has_hidden_child(self) -> bool:
        """Return whether a process of the command is left that /proc does not show, as another user's with `hidepid`.

        Orphans of the command are children of this process. It may wait for them although it neither sees nor ends them.
        """
        until_s = time.monotonic() + _TERMINATES_S
        while time.monotonic() < until_s:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    os.waitpid(ended.si_pid, os.WNOHANG)
                    continue
            except ChildProcessError:
                return False
            if any(one.parent == os.getpid() and pid in self._before for pid, one in processes().items()):
                return False  # perhaps it is only this one
            time.sleep(0.05)
        return True

    @staticmethod
    def _send(pids: Collection[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Make this process the parent of descendants that lose their own, if the system supports it."""

    def adopt(whether: int) -> None:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, whether, 0, 0, 0)

    adopt(1)
    try:
        yield
    finally:
        adopt(0)
