"""A process of a job's on one of its nodes: a Ray actor that holds one object."""

from __future__ import annotations

import os
from time import monotonic
from typing import Any

import ray

from runtime.execution.job_log import note
from runtime.execution.job_processes import mark_process
from runtime.execution.memory_watch import watch_memory
from runtime.execution.messages import MOST_WARNINGS, Nodes
from runtime.execution.nodes import prepare_process
from runtime.execution.worker_calls import results
from runtime.jobs.named import load_named
from runtime.machine import Node, Pool, core_wait_s
from runtime.memory import resident_gb
from runtime.output import capture
from runtime.phases import WorkerError, set_session


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
        mark_process(logs)
        prepare_process((node,))
        self._session = _WorkerSession(coordinator, job_id, f"{node.name} {os.getpid()}", node)
        set_session(self._session)
        watch_memory(coordinator, job_id, f"its process on {node.name} ({target})", node.pool)
        self._object = load_named(target, folder)(*arguments, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        self._session.watch.renew()
        try:
            return getattr(self._object, method)(*arguments)
        finally:
            self._session.reporter.flush()

    def beside(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object, in a thread of its own: of jobs whose rollouts are not to be waited for."""
        return getattr(self._object, method)(*arguments)

    def identity(self) -> int:
        """Process id."""
        return os.getpid()

    def usage(self) -> tuple[float, float]:
        """The memory that the process has for itself, GB, and how long it has been without a core, seconds."""
        return resident_gb(), core_wait_s()

    def close(self) -> None:
        """Call the object's `close`, if it has one."""
        if hasattr(self._object, "close"):
            self._object.close()


class ProgressReporter:
    """Tells the coordinator how far a phase is: seldom, but the last of it always.

    Args:
        who: whose count it is; those of a job's processes are added up.
    """

    EVERY_S = 0.1

    def __init__(self, coordinator: Any, job_id: str, who: str) -> None:
        self._coordinator = coordinator
        self._job_id, self._who = job_id, who
        self._told_s = 0.0
        self._untold: tuple[int, int, int] | None = None

    def tell(self, done: int, total: int, tokens: int) -> None:
        """Report progress, if it is time to."""
        self._untold = (done, total, tokens)
        if done >= total or monotonic() - self._told_s >= self.EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Report what was not reported yet."""
        if self._untold is not None:
            self._told_s = monotonic()
            self._coordinator.ask.remote("progress", self._job_id, *self._untold, self._who)
            self._untold = None


class Warner:
    """Tells the user what is worth a line: in this process's log, and by the coordinator on the console of the run."""

    def __init__(self, coordinator: Any, job_id: str) -> None:
        self._coordinator, self._job_id = coordinator, job_id
        self._said: set[str] = set()

    def warn(self, text: str) -> None:
        """Say a line, if it is a new one."""
        if text not in self._said and len(self._said) < MOST_WARNINGS:
            self._said.add(text)
            note(f"WARNING: {text}")
            self._coordinator.ask.remote("warned", self._job_id, text)


class Watch:
    """Asks the coordinator whether the rollout in hand is to use other parts of its nodes, and does not wait for the answer."""

    EVERY_S = 0.002

    def __init__(self, coordinator: Any, job_id: str) -> None:
        self._coordinator = coordinator
        self._job_id = job_id
        self._question: Any = None
        self._answer: bool | None = None
        self._looked_s = 0.0

    def renew(self) -> None:
        """What was answered before is over."""
        self._question = self._answer = None

    def stops(self) -> bool:
        """Whether they have changed."""
        if self._answer is None and self._question is None:
            self._question = self._coordinator.ask.remote("changes", self._job_id)
        elif self._answer is None and monotonic() - self._looked_s >= self.EVERY_S:
            self._looked_s = monotonic()
            if ray.wait([self._question], timeout=0)[0]:
                self._answer = bool(ray.get(self._question))
        return bool(self._answer)


class _WorkerSession:
    """The run, as a worker sees it: it may report progress and know its node."""

    iteration = 0
    worst_case = False
    parts: tuple[int, ...] = ()

    def __init__(self, coordinator: Any, job_id: str, who: str, node: Node) -> None:
        self.reporter, self.watch = ProgressReporter(coordinator, job_id, who), Watch(coordinator, job_id)
        self.progress, self.stops = self.reporter.tell, self.watch.stops
        self.warn = Warner(coordinator, job_id).warn
        self._nodes: Nodes = {node.pool: (node,)}

    def hold(self, job: Any, phase: str) -> Any:
        raise WorkerError("a worker has no phases: mark the methods of the job's own class")

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> Any:
        raise WorkerError("a worker starts no workers")

    def wait(self, calls: Any) -> Any:
        return results(calls)  # of workers that it was given

    def regroup(self, leave: Any) -> Any:
        raise WorkerError("a worker leaves no nodes: the job's own class is told which to leave")

    def beside(self) -> Any:
        raise WorkerError("a worker has no sides")

    def pause(self, pauses: bool) -> None:
        raise WorkerError("a worker pauses nothing")

    def wake(self, responses: Any) -> None:
        raise WorkerError("a worker stops no rollout: the job's own class says when it does")
