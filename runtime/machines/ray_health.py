"""Which of Ray's own processes has died, of those that everything depends on: its GCS, and the raylet of this machine.

Ray says that an actor has died, or ends this process after a minute.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from time import monotonic
from typing import Any

import ray
from ray._private import worker

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.machines.own_ray import answers

has_died = False  # this process has been a part of a Ray that has died
_LOOKS_S = 2.0
_FAILURES = 3  # in a row, since a network may have its moments
_ENDS_S = 60.0  # a process that was killed


class RayDied(InputError):
    """A process of Ray's has died. One line."""


class RayHealth:
    """Looks at them from a process that has joined Ray."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._gcs, here = context.gcs_address, context.get_node_id()
        own = next(node for node in ray.nodes() if node["NodeID"] == here)  # type: ignore[no-untyped-call]
        self._raylet = f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"
        self._sockets = [Path(own[key]) for key in ("RayletSocketName", "ObjectStoreSocketName")]
        self._looked_s, self._failures = monotonic(), 0

    def check(self) -> None:
        """Look from time to time.

        Raises:
            RayDied: one has.
        """
        if monotonic() - self._looked_s < _LOOKS_S:
            return
        self._failures = self._failures + 1 if (dead := self.dead()) is not None else 0
        self._looked_s = monotonic()
        if dead is not None and self._failures >= _FAILURES:
            raise RayDied(dead)

    def dead(self) -> str | None:
        """What is wrong with them, on one line; None where all answer, and can be found."""
        if not answers(self._gcs):
            return f"Ray's GCS at {self._gcs} has died"
        if not answers(self._raylet):
            return "Ray's raylet on this machine has died"
        gone = [path for path in self._sockets if not path.exists()]
        return f"{one_line(str(gone[0]), 300)}, a socket of Ray's, has gone: no process can begin" if gone else None


def quieten_ray() -> None:
    """Let Ray print nothing on our standard output: when a process dies it prints the raylet's log there."""
    worker.print_to_stdstream = lambda data, ignore_prefix: None


def shut_down() -> None:
    """Leave Ray; one that has died is left alone (`has_died`), since its own way would take a minute and may end in a crash."""
    global has_died
    if ray.is_initialized() and not answers(ray.get_runtime_context().gcs_address):
        has_died = True
        atexit.unregister(ray.shutdown)
    else:
        node: Any = worker._global_node  # noqa: SLF001
        started = [one.process for of_kind in node.all_processes.values() for one in of_kind] if node else []
        ray.shutdown()
        for process in started:  # on a busy machine Ray leaves those that it has killed before they have ended
            with suppress(TimeoutExpired):
                process.wait(_ENDS_S)
