"""A process of a job's on one of its nodes, a Ray actor that holds one object, and how others call it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
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

_WATCHES_S = 0.5  # between looks at its memory
_GRACE_S = 10.0  # for the coordinator, when it is too large

BESIDE = "beside"  # of an actor's calls, those that do not wait for others


class Call:
    """A call of a worker that is under way; as an argument of another call it stands for its result."""

    def __init__(self, handle: Handle, reference: Any) -> None:
        self.handle = handle
        self.reference = reference


class Handle:
    """A worker, as the job sees it (see `runtime.phases.WorkerHandle`), or another worker that was given it."""

    def __init__(self, actor: Any, node: Node, target: str, where: str) -> None:
        self.actor = actor
        self.node = node
        self.target = target
        self.where = where  # what was being done when it was started

    def call(self, method: str, *arguments: Any) -> Call:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, Call) else argument for argument in arguments]
        return Call(self, self.actor.call.remote(method, *values))

    def beside(self, method: str, *arguments: Any) -> Call:
        """See `WorkerHandle`."""
        values = [argument.reference if isinstance(argument, Call) else argument for argument in arguments]
        return Call(self, self.actor.beside.options(concurrency_group=BESIDE).remote(method, *values))

    def close(self) -> None:
        """See `WorkerHandle`."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=10)
        ray.kill(self.actor)


def on_machine(machine: str) -> dict[str, Any]:
    """Options of an actor or a task that runs on one machine alone, whatever else does there.

    Args:
        machine: id of the Ray node.
    """
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(machine, soft=False)
    return {"num_cpus": 0, "scheduling_strategy": strategy}


def results(calls: Any) -> Any:
    """The results of calls, of one or of a list of them; see `RuntimeHook.wait`.

    Raises:
        WorkerError: one has failed, or its process has died; the message says which, where and why.
    """
    several = isinstance(calls, list | tuple)
    values = []
    for call in calls if several else (calls,):
        try:
            values.append(ray.get(call.reference))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if cause is None:
                raise
            raise cause from None
        except ray.exceptions.RayActorError as error:
            where = f"its process on {call.handle.node.name} ({call.handle.target})"
            if "creation task" in str(error):
                raise WorkerError(f"{where} could not be made: {_lines(error)[-1]}") from None
            raise WorkerDied(f"{where} has died{_how(error)}") from None
    return values if several else values[0]


def _how(error: Exception) -> str:
    """How a process ended, from what Ray says about it."""
    return next((f": {line}" for line in _lines(error) if "exit" in line or "killed" in line.lower()), "")


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]


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
        self._session.begin("has_process", ray.get_runtime_context().get_node_id(), os.getpid(), started(os.getpid()))
        self._session.watch_memory(f"its process on {node.name} ({target})", node.pool)
        self._object = load_named(target, folder)(*arguments, **options)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        self._session.renew()
        try:
            return getattr(self._object, method)(*arguments)
        finally:
            self._session.flush()

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


class Voice:
    """How a process of a job speaks to the coordinator without waiting: it says how far it is and what the user is to know, and
    asks whether the rollout in hand is to use other parts of its nodes.

    Args:
        who: whose count of progress it is; those of a job's processes are added up.
    """

    TELLS_S = 0.1  # of progress, but the last of it is told always
    LOOKS_S = 0.002  # for an answer

    def __init__(self, coordinator: Any, job_id: str, who: str) -> None:
        self._coordinator, self._job_id, self._who = coordinator, job_id, who
        self._told_s = self._looked_s = 0.0
        self._untold: tuple[int, int, int] | None = None
        self._said: set[str] = set()
        self._question: Any = None
        self._answer: bool | None = None

    def begin(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator, as this job."""
        return self._coordinator.ask.remote(method, self._job_id, *arguments)

    def progress(self, done: int, total: int, tokens: int) -> None:
        """Report progress, if it is time to."""
        self._untold = (done, total, tokens)
        if done >= total or time.monotonic() - self._told_s >= self.TELLS_S:
            self.flush()

    def flush(self) -> None:
        """Report what was not reported yet."""
        if self._untold is not None:
            self._told_s = time.monotonic()
            self.begin("progress", *self._untold, self._who)
            self._untold = None

    def warn(self, text: str) -> None:
        """Say a line, if it is a new one, in this process's log and on the console of the run."""
        if text not in self._said and len(self._said) < MOST_WARNINGS:
            self._said.add(text)
            note(f"WARNING: {text}")
            self.begin("warned", text)

    def renew(self) -> None:
        """What was answered before, of other parts, is over."""
        self._question = self._answer = None

    def stops(self) -> bool:
        """Whether the parts have changed."""
        if self._answer is None and self._question is None:
            self._question = self.begin("changes")
        elif self._answer is None and time.monotonic() - self._looked_s >= self.LOOKS_S:
            self._looked_s = time.monotonic()
            if ray.wait([self._question], timeout=0)[0]:
                self._answer = bool(ray.get(self._question))
        return bool(self._answer)

    def watch_memory(self, what: str, pool: str) -> None:
        """Watch the host memory of this process, and of those that it has started, from a thread of its own until its end.

        One that has more than its node has for jobs tells the coordinator, which ends the job and says why; if nothing comes of
        that, the process ends itself.

        Args:
            what: it is, for the user. pool: whose nodes it is on; nothing for the job's own process, which may be on both.
        """
        threading.Thread(target=self._watch_memory, args=(what, pool), name="rollmux-memory", daemon=True).start()

    def _watch_memory(self, what: str, pool: str) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # the coordinator has gone, and this process soon after it
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
    "beside": "a worker has no sides",
    "pause": "a worker pauses nothing",
    "wake": "a worker stops no rollout: the job's own class says when it does",
}


class _WorkerSession(Voice):
    """The run, as a worker sees it: it may report progress and know its node."""

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
        return results(calls)  # of workers that it was given
