"""Watches the host memory of a process of a job, from within: one that has more than its node has for jobs is ended.

The watch is a thread. It tells the coordinator, which ends the job and says why; if nothing comes of that, the process ends itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import ray

_EVERY_S = 0.5
_GRACE_S = 10.0  # for the coordinator
_SEGMENT = "/memfd:rollmux"


def watch_memory(coordinator: Any, job_id: str, node: str, pool: str) -> None:
    """Watch this process, and those that it has started, until its end.

    Args:
        node: its name for the user. pool: whose nodes it is on; nothing for the job's own process, which may be on both.
    """
    threading.Thread(target=_watch, args=(coordinator, job_id, node, pool), name="rollmux-memory", daemon=True).start()


def _watch(coordinator: Any, job_id: str, node: str, pool: str) -> None:
    with contextlib.suppress(ray.exceptions.RayError):  # the coordinator has gone, and this process soon after it
        limit_gb = ray.get(coordinator.ask.remote("memory_limit", job_id, pool))
        while limit_gb is not None and (own_gb := tree_gb(os.getpid())) <= limit_gb:
            time.sleep(_EVERY_S)
        if limit_gb is not None:
            coordinator.ask.remote("exceeded", job_id, node, own_gb, limit_gb)
            time.sleep(_GRACE_S)
            os.kill(os.getpid(), signal.SIGKILL)


def tree_gb(pid: int) -> float:
    """Memory that a process and its descendants have for themselves, GB; the largest of what each shares counts once.

    So does state that waits in segments, whose pages the process may have given up (`runtime.residency.segment`).
    """
    own, shared, pids, segments = 0, 0, [pid], dict[int, int]()
    while pids:
        entry = Path(f"/proc/{pids.pop()}")
        with contextlib.suppress(OSError):  # it has ended
            sizes = {
                line.partition(":")[0]: line.split()[1] for line in (entry / "status").read_text().splitlines() if "kB" in line
            }
            own += int(sizes.get("RssAnon", 0))
            shared = max(shared, int(sizes.get("RssShmem", 0)))
            for descriptor in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor).startswith(_SEGMENT):
                        status = descriptor.stat()
                        segments[status.st_ino] = status.st_blocks // 2  # of 512 bytes, as kB
            for thread in (entry / "task").iterdir():
                with contextlib.suppress(OSError):
                    pids += [int(child) for child in (thread / "children").read_text().split()]
    return (own + max(shared, sum(segments.values()))) * 1024 / 1e9
