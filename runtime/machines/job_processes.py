"""The processes that jobs start beside their own: they end with their job, also those that have left its session or its tree.

They are known by a mark in the environment that they were started with, or, where they were forked, by what they inherit: they
print to a log of the job's. Whoever reads a log is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

_MARK = "ROLLMUX_LOGS"  # in the environment: the folder of the job's logs, with a slash at its end
_STARTED = 19  # place of the time of start in /proc/PID/stat, behind the name
_LOOKS = 4  # in a row that find nobody: a process that has just been forked has the environment of its parent until it begins
_MOST_S = 60.0  # then a process is in nobody's reach
_GRACE_S = 2.0  # for those that end by themselves


def mark_process(logs: str) -> None:
    """Let what this process starts from now on be known as a job's.

    Args:
        logs: folder of the job's logs.
    """
    os.environ |= mark_of(logs)


def mark_of(logs: str) -> dict[str, str]:
    """What makes a process known as a job's, in its environment.

    Args:
        logs: folder of the job's logs.
    """
    return {_MARK: f"{logs}/"}


def end_job_processes(logs: str, known: Collection[tuple[int, int]] = ()) -> None:
    """End what is left of a job on this machine; or of all jobs of a run, whose logs are below one folder.

    Args:
        logs: Folder of the job's logs.
        known: Processes that it had here: id, and when it was started. One that the kernel takes apart has no environment and no
            files any more, but may still have memory of a GPU.
    """

    def find() -> list[int]:
        left = [pid for pid, start in known if started(pid) == start]
        return [*{*marked_processes(f"{_MARK}={logs}/", logs, (os.O_WRONLY,)), *left}]

    end_all(find, _GRACE_S)


def marked_processes(mark: str, folder: str, modes: Collection[int]) -> list[int]:
    """This user's living processes that were started with a mark in their environment, or keep a file open below a folder.

    Args:
        modes: in which they keep it open.
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
    """Wait until no processes are found, this one aside, and end those that do not end in time.

    Args:
        find: Returns the ids of the processes.
        grace_s: Time that they have to end by themselves, seconds.

    Returns:
        The ids of those that cannot be ended.
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
    """Whether a process has a file open below a folder."""
    for descriptor in (entry / "fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                flags = (entry / "fdinfo" / descriptor.name).read_text().partition("flags:")[2].split()[0]
                if int(flags, 8) & os.O_ACCMODE in modes:
                    return True
    return False


def user_of(pid: int) -> int | None:
    """The user whose a process is; None: there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def started(pid: int) -> int:
    """When this machine started a living process, in clock ticks since it was booted; 0: there is none.

    A process lives as long as one of its threads does, also after its first one has ended.
    """
    entry = Path(f"/proc/{pid}")
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        ended = fields[0] in "ZX" and len(os.listdir(entry / "task")) < 2
    except OSError:
        return 0
    return 0 if ended else int(fields[_STARTED])
