"""The memory that processes of this machine may use, and what they use.

The limit is the machine's memory, or that of a container (cgroups, version 1 or 2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_SEGMENT = "/memfd:rollmux"


class HostMemory(NamedTuple):
    """Memory of this machine or container.

    Attributes:
        total_gb: Total memory, in GB.
        free_gb: Free memory, in GB.
        limited: Whether a container's limit determines the total.
    """

    total_gb: float
    free_gb: float
    limited: bool


def memory(root: Path = _ROOT) -> HostMemory:
    """Return the memory of this machine or container; 0 if the system does not report it.

    Args:
        root: Root of the file system.
    """
    sizes = _sizes(root / "proc/meminfo")
    total_gb, free_gb = (sizes.get(name, 0) / 1e9 for name in ("MemTotal", "MemAvailable"))
    limited = False
    for limit, used in _limits(root):
        if limit / 1e9 < total_gb:
            total_gb, limited = limit / 1e9, True
        free_gb = min(free_gb, max(0.0, (limit - used) / 1e9))
    return HostMemory(total_gb, free_gb, limited)


def resident_gb() -> float:
    """Return the memory of this process, in GB, without that of files."""
    sizes = _sizes(_ROOT / "proc/self/status")
    return (sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)) / 1e9


def tree_gb(pid: int) -> float:
    """Return the memory of a process and its descendants, in GB, without that of files.

    Shared memory counts once, by the process with most of it. State in segments counts too, even if the process has unmapped its
    pages (`rollmux_segment`).
    """
    own, shared, pids, segments = 0, 0, [pid], dict[int, int]()
    while pids:
        entry = Path(f"/proc/{pids.pop()}")
        with contextlib.suppress(OSError):  # the process has ended
            sizes = _sizes(entry / "status")
            own += sizes.get("RssAnon", 0)
            shared = max(shared, sizes.get("RssShmem", 0))
            for descriptor in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor).startswith(_SEGMENT):
                        status = descriptor.stat()
                        segments[status.st_ino] = 512 * status.st_blocks
            for thread in (entry / "task").iterdir():
                with contextlib.suppress(OSError):
                    pids += [int(child) for child in (thread / "children").read_text().split()]
    return (own + max(shared, sum(segments.values()))) / 1e9


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes by name that a file of /proc reports in kB; empty if it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].removesuffix(":"): 1024 * int(row[1]) for row in rows if row[-1:] == ["kB"]}


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use in bytes of this process's cgroup and all cgroups around it. Page cache counts as used."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            home, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            home, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inner = home / place.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder != home and home not in folder.parents:
                break
            try:
                limit, used = ((folder / name).read_text().strip() for name in names)
                yield int(limit), int(used)
            except (OSError, ValueError):  # a container may see its own group as the root; `max` is no limit
                continue
