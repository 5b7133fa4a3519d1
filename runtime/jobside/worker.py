"""A process of a job on one of its nodes: a Ray actor that holds an object, and the handle to call it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import ray

from runtime.jobs.named import load_named
from runtime.jobside.job_log import note
from runtime.jobside.messages import MOST_WARNINGS, Nodes
from runtime.machine import Node, Pool, core_wait_s
from runtime.machines.job_processes import mark_process, started
from runtime.machines.nodes import prepare_process
from runtime.memory import resident_gb, tree_gb
from runtime.output import capture
from runtime.phases import WorkerDied, WorkerError, set_session

_WATCHES_S = 0.5  # interval of memory checks
_GRACE_S = 10.0  # time for the coordinator to end a process that is too large
_ANSWERS_S = 5.0  # time in which a process that is not busy answers, and Ray notices that one has died

CONCURRENT = "concurrent"  # concurrency group of calls that do not wait for others


class WorkerCall:
    """A call of a worker in progress. As an argument of another call, it means its result.

    Args:
        handle: The worker.
        reference: Ray's reference of the result.
    """

    def __init__(self, handle: ActorHandle, reference: Any) -> None:
        self.handle = handle
        self.reference = reference


class ActorHandle:
    """A worker as the job, or another worker, sees it; see `runtime.phases.WorkerHandle`.

    Args:
        actor: Handle of the worker's actor.
        node: Node of the worker.
        target: Class of its object, as `module:Class`.
        where: Activity of the job during which the worker was started.

    Attributes:
        is_closed: Whether the job has ended the process.
    """

    def __init__(self, actor: Any, node: Node, target: str, where: str) -> None:
        self.actor = actor
        self.node = node
        self.target = target
        self.where = where
        self.is_closed = False

    def call(self, method: str, *arguments: Any) -> WorkerCall:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, WorkerCall) else argument for argument in arguments]
        return WorkerCall(self, self.actor.call.remote(method, *values))

    def call_concurrently(self, method: str, *arguments: Any) -> WorkerCall:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, WorkerCall) else argument for argument in arguments]
        return WorkerCall(self, self.actor.call_concurrently.options(concurrency_group=CONCURRENT).remote(method, *values))

    def close(self) -> None:
        """See `WorkerHandle`."""
        self.is_closed = True
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=10)
        ray.kill(self.actor)


def on_machine(machine: str) -> dict[str, Any]:
    """Return the options of an actor or a task that runs on one machine, regardless of the resources in use there.

    Args:
        machine: Id of the Ray node.
    """
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(machine, soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy}


def results(calls: Any) -> Any:
    """Return the result of a call, or the results of a list of calls; see `RuntimeHook.wait`.

    The first call that fails ends the wait: the others may be waiting for its process, as ranks do for each other.

    Args:
        calls: A call, or a list of calls.

    Raises:
        WorkerError: If a call has failed or its process has died; the message says which one, where and why.
    """
    several = isinstance(calls, list | tuple)
    wanted = [*calls] if several else [calls]
    pending, values = {call.reference: call for call in wanted}, {}
    while pending:
        for reference in ray.wait([*pending], num_returns=1)[0]:
            values[reference] = _result(pending.pop(reference))
    return [values[call.reference] for call in wanted] if several else values[calls.reference]


def find_death(handles: Sequence[ActorHandle]) -> WorkerDied | None:
    """Return the error of one of a job's workers whose process has died, or None. A worker that is busy counts as alive.

    Args:
        handles: Workers of the job.
    """
    asked = {handle.actor.identity.remote(): handle for handle in handles if not handle.is_closed}
    answered = ray.wait([*asked], num_returns=len(asked), timeout=_ANSWERS_S)[0] if asked else []
    for reference in answered:
        try:
            _result(WorkerCall(asked[reference], reference))
        except WorkerDied as death:
            return death
        except WorkerError:  # it could not be made
            continue
    return None


def _result(call: WorkerCall) -> Any:
    try:
        return ray.get(call.reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if cause is None:
            raise
        raise cause from None
    except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
        where = f"its process on {call.handle.node.name} ({call.handle.target})"
        if isinstance(error, ray.exceptions.ActorUnschedulableError):
            raise WorkerDied(f"{where} has died before it began: its machine has gone") from None
        if "creation task" in str(error):
            raise WorkerError(f"{where} could not be made: {_lines(error)[-1]}") from None
        raise WorkerDied(f"{where} has died{_how(error)}") from None


def _how(error: Exception) -> str:
    """Return how a process ended, from Ray's error."""
    return next((f": {line}" for line in _lines(error) if "exit" in line or "killed" in line.lower()), "")


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


class Worker:
    """A Ray actor that holds an object of a job.

    Args:
        node: Node to which the process is bound, before anything else is imported.
        coordinator: Handle of the coordinator's actor.
        job_id: Id of the job.
        logs: Folder of the logs of the job's processes.
        target: Class of the object, as `module:Class`.
        folder: Folder in which a module that is not installed is looked for.
        arguments: Arguments of the class.
        options: Keyword arguments of the class.
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
        self._session.begin("has_process", ray.get_runtime_context().get_node_id(), os.getpid(), started(os.getpid()))
        self._session.watch_memory(f"its process on {node.name} ({target})", node.pool)
        self._object = load_named(target, folder)(*arguments, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        self._session.renew()
        try:
            return attrgetter(method)(self._object)(*arguments)
        finally:
            self._session.flush()

    def call_concurrently(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object in another thread, without waiting for the call in progress."""
        return attrgetter(method)(self._object)(*arguments)

    def identity(self) -> int:
        """Return the process id."""
        return os.getpid()

    def usage(self) -> tuple[float, float]:
        """Return the memory of the process in GB, and the seconds in which it had no core."""
        return resident_gb(), core_wait_s()

    def close(self) -> None:
        """Call the object's `close`, if it has one."""
        if hasattr(self._object, "close"):
            self._object.close()


class CoordinatorLink:
    """A job process's side of the communication with the coordinator that does not wait for answers.

    It reports progress and warnings, and asks whether the present rollout must use other parts of its nodes.

    Args:
        coordinator: Handle of the coordinator's actor.
        job_id: Id of the job.
        who: Name of this process; counts of progress of a job's processes are added up.
    """

    TELLS_S = 0.1  # interval of progress reports; the last report of a phase is always sent
    LOOKS_S = 0.002  # interval of looks for an answer

    def __init__(self, coordinator: Any, job_id: str, who: str) -> None:
        self._coordinator, self._job_id, self._who = coordinator, job_id, who
        self._told_s = self._looked_s = 0.0
        self._untold: tuple[int, int, int] | None = None
        self._said: set[str] = set()
        self._question: Any = None
        self._answer: bool | None = None

    def begin(self, method: str, *arguments: Any) -> Any:
        """Begin a call of a method of the coordinator as this job, and return its reference."""
        return self._coordinator.call.remote("ask", method, self._job_id, *arguments)

    def progress(self, done: int, total: int, tokens: int) -> None:
        """Report progress if the last report is old enough; see `RuntimeHook.progress`."""
        self._untold = (done, total, tokens)
        if done >= total or time.monotonic() - self._told_s >= self.TELLS_S:
            self.flush()

    def flush(self) -> None:
        """Send the last progress that was not reported."""
        if self._untold is not None:
            self._told_s = time.monotonic()
            self.begin("progress", *self._untold, self._who)
            self._untold = None

    def warn(self, text: str) -> None:
        """Write a warning to this process's log and to the console of the run, unless it was written before."""
        if text not in self._said and len(self._said) < MOST_WARNINGS:
            self._said.add(text)
            note(f"WARNING: {text}")
            self.begin("warned", text)

    def renew(self) -> None:
        """Forget the last answer, which concerned other parts."""
        self._question = self._answer = None

    def stops(self) -> bool:
        """Return whether the parts have changed."""
        if self._answer is None and self._question is None:
            self._question = self.begin("changes")
        elif self._answer is None and time.monotonic() - self._looked_s >= self.LOOKS_S:
            self._looked_s = time.monotonic()
            if ray.wait([self._question], timeout=0)[0]:
                self._answer = bool(ray.get(self._question))
        return bool(self._answer)

    def watch_memory(self, what: str, pool: str) -> None:
        """Watch the host memory of this process and its descendants in a thread, until the process ends.

        If it exceeds the node's memory for jobs, the coordinator is informed, which ends the job and reports why. If that takes too
        long, this process ends itself.

        Args:
            what: Name of the process, for messages.
            pool: Pool of its node, or "" for the job's own process, which may be on both.
        """
        threading.Thread(target=self._watch_memory, args=(what, pool), name="rollmux-memory", daemon=True).start()

    def _watch_memory(self, what: str, pool: str) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # the coordinator has ended, and this process soon will
            limit_gb = ray.get(self.begin("memory_limit", pool))
            while limit_gb is not None and (own_gb := tree_gb(os.getpid())) <= limit_gb:
                time.sleep(_WATCHES_S)
            if limit_gb is not None:
                self.begin("exceeded", what, own_gb, limit_gb)
                time.sleep(_GRACE_S)
                os.kill(os.getpid(), signal.SIGKILL)


_NOT_OF_A_WORKER = {
    "hold": "a worker has no phases: mark the methods of the job's own class",
    "start_worker": "a worker starts no workers",
    "regroup": "a worker leaves no nodes: the job's own class is told which to leave",
    "second_session": "a worker has no sides",
    "pause": "a worker pauses nothing",
    "wake": "a worker stops no rollout: the job's own class says when it does",
}


class _WorkerSession(CoordinatorLink):
    """The session of a worker: it reports progress and knows its node."""

    iteration = 0
    worst_case = False
    parts: tuple[int, ...] = ()

    def __init__(self, coordinator: Any, job_id: str, who: str, node: Node) -> None:
        super().__init__(coordinator, job_id, who)
        self._nodes: Nodes = {node.pool: (node,)}

    def __getattr__(self, name: str) -> Any:
        if (problem := _NOT_OF_A_WORKER.get(name)) is None:
            raise AttributeError(name)
        raise WorkerError(problem)

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes.get(pool, ())

    def wait(self, calls: Any) -> Any:
        return results(calls)  # calls of other workers, whose handles it has received
