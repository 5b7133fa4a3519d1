"""Processes that jobs start besides their own. They end with their job, even if they have left its session or process tree.

They are recognised by a mark in the environment with which they were started, or, if they were forked, by an inherited file: they
write to a log of the job. A process that reads a log is not one of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

_MARK = "ROLLMUX_LOGS"  # environment variable: the folder of the job's logs, with a slash at its end
_STARTED = 19  # index of the start time in /proc/PID/stat, after the name
_LOOKS = 4  # consecutive searches without result: a process that was just forked may be missed by one
_MOST_S = 60.0  # time after which a process counts as one that cannot be ended
_GRACE_S = 2.0  # time for processes to end without a signal


def mark_process(logs: str) -> None:
    """Mark the further children of this process as a job's.

    Args:
        logs: Folder of the job's logs.
    """
    os.environ |= mark_of(logs)


def mark_of(logs: str) -> dict[str, str]:
    """Return the environment variables that mark a process as a job's.

    Args:
        logs: Folder of the job's logs.
    """
    return {_MARK: f"{logs}/"}


def end_job_processes(logs: str, known: Collection[tuple[int, int]] = ()) -> list[int]:
    """End the processes of a job on this machine, or of all jobs of a run, whose logs are below one folder.

    Args:
        logs: Folder of the job's logs.
        known: Process id and start time of known processes of the job. A process that the kernel is removing has no environment or
            files any more, but may still occupy GPU memory.

    Returns:
        Ids of processes that cannot be ended.
    """

    def find() -> list[int]:
        left = [pid for pid, start in known if started(pid) == start]
        return [*{*marked_processes(f"{_MARK}={logs}/", logs, (os.O_WRONLY,)), *left}]

    return end_all(find, _GRACE_S)


def marked_processes(mark: str, folder: str, modes: Collection[int]) -> list[int]:
    """Return this user's living processes that have a mark in their environment, or an open file below a folder.

    Args:
        mark: Text in the environment.
        folder: The folder.
        modes: Access modes of open files that count.
    """
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or entry.stat().st_uid != os.geteuid():
                continue
            if (mark.encode() in (entry / "environ").read_bytes() or _holds(entry, folder, modes)) and started(int(entry.name)):
                pids.append(int(entry.name))
    return pids


def end_all(find: Callable[[], list[int]], grace_s: float) -> list[int]:
    """Wait until no processes but this one are found, and kill those that do not end in time.

    Args:
        find: Function that returns the ids of the processes.
        grace_s: Time for processes to end without a signal, in seconds.

    Returns:
        Ids of processes that cannot be ended.
    """
    until_s = time.monotonic() + grace_s
    quiet, pids = 0, list[int]()
    while quiet < _LOOKS and time.monotonic() < until_s + _MOST_S:
        pids = [pid for pid in find() if pid != os.getpid()]
        quiet = 0 if pids else quiet + 1
        if time.monotonic() > until_s:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return pids


def _holds(entry: Path, folder: str, modes: Collection[int]) -> bool:
    """Return whether a process has a file open below a folder."""
    for descriptor in (entry / "fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                flags = (entry / "fdinfo" / descriptor.name).read_text().partition("flags:")[2].split()[0]
                if int(flags, 8) & os.O_ACCMODE in modes:
                    return True
    return False


def user_of(pid: int) -> int | None:
    """Return the user id of a process, or None if there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def started(pid: int) -> int:
    """Return the start time of a living process in clock ticks since boot, or 0 if there is none.

    A process lives as long as one of its threads does, even if its main thread has ended.
    """
    entry = Path(f"/proc/{pid}")
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        ended = fields[0] in "ZX" and len(os.listdir(entry / "task")) < 2
    except OSError:
        return 0
    return 0 if ended else int(fields[_STARTED])
