"""A process of a job's on one of its nodes: a Ray actor that holds one object."""

from __future__ import annotations

import os
from time import monotonic
from typing import Any

from runtime.execution.messages import Nodes
from runtime.execution.nodes import prepare_process, resident_gb
from runtime.jobs.named import load_named
from runtime.output import capture
from runtime.phases import WorkerError, set_gate
from runtime.record import Node, Pool


class Worker:
    """Holds the object of a job's class of workers.

    Args:
        node: to be pinned to, before anything else is imported.
        coordinator, job_id: whom to report progress to, and as whom. logs: folder of what the job's processes print.
        target: `module:Class` of the object. folder: where its module may lie too. arguments, options: of its constructor.
    """

    def __init__(
        self,
        node: Node,
        coordinator: Any,
        job_id: str,
        logs: str,
        target: str,
        folder: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        capture(logs, f"{node.name}.{target.rpartition(':')[2]}")
        prepare_process((node,))
        set_gate(_WorkerGate(ProgressReporter(coordinator, job_id), node))
        self._object = load_named(target, folder)(*arguments, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        return getattr(self._object, method)(*arguments)

    def identity(self) -> tuple[int, float]:
        """Process id, and the memory that the process has for itself, GB."""
        return os.getpid(), resident_gb()

    def close(self) -> None:
        """Call the object's `close`, if it has one."""
        if hasattr(self._object, "close"):
            self._object.close()


class ProgressReporter:
    """Tells the coordinator how far a phase is: seldom, but of the end always."""

    EVERY_S = 0.1

    def __init__(self, coordinator: Any, job_id: str) -> None:
        self._coordinator = coordinator
        self._job_id = job_id
        self._told_s = 0.0

    def tell(self, done: int, total: int, tokens: int) -> None:
        """Report progress, if it is time to."""
        now_s = monotonic()
        if done >= total or now_s - self._told_s >= self.EVERY_S:
            self._told_s = now_s
            self._coordinator.progress.remote(self._job_id, done, total, tokens)


class _WorkerGate:
    """The run, as a worker sees it: it may report progress and know its node."""

    iteration = 0
    worst_case = False

    def __init__(self, reporter: ProgressReporter, node: Node) -> None:
        self.progress = reporter.tell
        self._nodes: Nodes = {node.pool: (node,)}

    def hold(self, job: Any, phase: str) -> Any:
        raise WorkerError("a worker has no phases: mark the methods of the job's own class")

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> Any:
        raise WorkerError("a worker starts no workers")

    def wait(self, calls: Any) -> Any:
        raise WorkerError("a worker waits for no workers")
