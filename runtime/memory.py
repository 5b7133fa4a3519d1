"""The memory that processes of this machine may use, and what they have.

It is what the machine has, or what a container is limited to (cgroups, version 1 or 2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_SEGMENT = "/memfd:rollmux"


class Memory(NamedTuple):
    """GB: all, what is free, and whether a limit of a container says so."""

    total_gb: float
    free_gb: float
    limited: bool


def memory(root: Path = _ROOT) -> Memory:
    """What there is here; 0 where the system does not say.

    Args:
        root: of the file system.
    """
    sizes = _sizes(root / "proc/meminfo")
    total_gb, free_gb = (sizes.get(name, 0) / 1e9 for name in ("MemTotal", "MemAvailable"))
    limited = False
    for limit, used in _limits(root):
        if limit / 1e9 < total_gb:
            total_gb, limited = limit / 1e9, True
        free_gb = min(free_gb, max(0.0, (limit - used) / 1e9))
    return Memory(total_gb, free_gb, limited)


def resident_gb() -> float:
    """Memory that this process has for itself, GB."""
    sizes = _sizes(_ROOT / "proc/self/status")
    return (sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)) / 1e9


def tree_gb(pid: int) -> float:
    """Memory that a process and its descendants have for themselves, GB; the largest of what each shares counts once.

    So does state that waits in segments, whose pages the process may have given up (`rollmux_segment`).
    """
    own, shared, pids, segments = 0, 0, [pid], dict[int, int]()
    while pids:
        entry = Path(f"/proc/{pids.pop()}")
        with contextlib.suppress(OSError):  # it has ended
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
    """Bytes by name, as a file of /proc says them in kB; none where it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].removesuffix(":"): 1024 * int(row[1]) for row in rows if row[-1:] == ["kB"]}


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes, of the groups of this process and all those around them. Page cache counts as used."""
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
