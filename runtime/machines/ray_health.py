"""Health of the Ray processes on which everything depends: the GCS, and the raylet of this machine.

When one of them dies, Ray reports only that an actor has died, or ends this process after a minute.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from time import monotonic
from traceback import walk_tb
from typing import Any

import ray
from ray._private import node, worker

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.machines.own_ray import answers

has_died = False  # whether the Ray that this process had joined has died
_LOOKS_S = 2.0
_FAILURES = 3  # consecutive failures that count as death, since a network may fail for a moment
_ENDS_S = 60.0  # longest wait for a killed process to end


class RayDied(InputError):
    """Error: a process of Ray has died; one line."""


class RayHealth:
    """Checks of these processes from a process that has joined Ray."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._gcs, here = context.gcs_address, context.get_node_id()
        own = next(node for node in ray.nodes() if node["NodeID"] == here)  # type: ignore[no-untyped-call]
        self._raylet = f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"
        self._sockets = [Path(own[key]) for key in ("RayletSocketName", "ObjectStoreSocketName")]
        self._looked_s, self._failures = monotonic(), 0

    def check(self) -> None:
        """Check the processes every few seconds.

        Raises:
            RayDied: If one has died.
        """
        if monotonic() - self._looked_s < _LOOKS_S:
            return
        self._failures = self._failures + 1 if (dead := self.dead()) is not None else 0
        self._looked_s = monotonic()
        if dead is not None and self._failures >= _FAILURES:
            raise RayDied(dead)

    def dead(self) -> str | None:
        """Return a line about the process that does not answer or whose socket is gone, or None."""
        if not answers(self._gcs):
            return f"Ray's GCS at {self._gcs} has died"
        if not answers(self._raylet):
            return "Ray's raylet on this machine has died"
        gone = [path for path in self._sockets if not path.exists()]
        return f"{one_line(str(gone[0]), 300)}, a socket of Ray's, has gone: no process can begin" if gone else None


def quieten_ray() -> None:
    """Stop Ray from printing to standard output: when a process dies, Ray prints the raylet's log there."""
    worker.print_to_stdstream = lambda data, ignore_prefix: None


def trim_ray() -> None:
    """Let `ray.init` start neither the autoscaler's monitor, the log monitor nor the web server: a run uses none of them.

    They take a third of a start's processor time. `ray start` has options against two of them, `ray.init` has none.
    """
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        setattr(node.Node, name, lambda self, **options: None)


def shut_down() -> list[Popen[bytes]]:
    """Leave Ray. A Ray that has died is left alone (`has_died`): its shutdown would take a minute and might crash."""
    global has_died
    started = _processes_of(worker._global_node)  # noqa: SLF001
    if ray.is_initialized() and not answers(ray.get_runtime_context().gcs_address):
        has_died = True
        atexit.unregister(ray.shutdown)
        return started
    ray.shutdown()
    wait_for_ends(started)  # on a busy machine, Ray returns before the processes that it has killed have ended
    return []


def started_in_vain(error: BaseException) -> list[Popen[bytes]]:
    """Return the processes of a Ray whose start has failed, which no other object refers to.

    Args:
        error: Error of `ray.init`.
    """
    owners = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    return next((_processes_of(owner) for owner in owners if hasattr(owner, "all_processes")), [])


def _processes_of(node: Any) -> list[Popen[bytes]]:
    return [one.process for of_kind in node.all_processes.values() for one in of_kind] if node else []


def wait_for_ends(processes: Iterable[Popen[bytes]]) -> None:
    """Wait until processes that were killed have ended."""
    for process in processes:
        with suppress(TimeoutExpired):
            process.wait(_ENDS_S)
