"""The processes of an owner, as far as this machine can see whether they live.

A process is known by its number and by when the machine started it, since numbers are used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from runtime.journal.facts import OwnProcess
from runtime.machine import boot_id
from runtime.owners.http.lease import Owner

_STARTED = 19  # place of the time of start in /proc/PID/stat, behind the name


def boot_of(host: str) -> str:
    """What says that an owner's host is this machine, and since when it has been up; empty where it is another one."""
    return boot_id().strip() if host == os.uname().nodename else ""


def own_processes(pids: Iterable[int], boot: str) -> tuple[OwnProcess, ...]:
    """The processes that an owner names.

    Args:
        boot: as `boot_of` says it.
    """
    return tuple(OwnProcess(pid, _started(pid) if boot else 0) for pid in dict.fromkeys(pids))


def living(owner: Owner) -> list[int]:
    """Those of an owner's processes that are seen to live: none where they are of another machine, or of one started since."""
    if not owner.boot or owner.boot != boot_id().strip():
        return []
    return [one.pid for one in owner.processes if one.started and _started(one.pid) == one.started]


def _started(pid: int) -> int:
    """When the machine started a living process, in clock ticks; 0: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[_STARTED])
