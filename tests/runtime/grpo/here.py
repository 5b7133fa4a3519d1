"""A run in this process, as far as a built-in job needs one: its workers are threads, and permits are given at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from runtime.facts import Node, Pool
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.jobs.named import load_named
from runtime.jobs.spec import JobSpec, parse_jobs
from runtime.phases import Paused

NODES: dict[Pool, Node] = {
    "rollout": Node("rollout-0", "rollout", "m", (0,), (), 4.0, "1 core"),
    "training": Node("training-0", "training", "m", (1,), (), 4.0, "1 core"),
}


@contextlib.contextmanager
def two_engines(algorithm: dict[str, int], cache: Path) -> Iterator[tuple[JobSpec, list[RolloutWorker]]]:
    """Two engines of a job, and its spec.

    Args:
        cache: folder for its model.
    """
    model = {"name": "tiny", "hidden_size": 64, "layers": 1}
    job: dict[str, Any] = {"id": "a", "slo": 2, "iterations": 1, "task": "long-tail", "model": model, "algorithm": algorithm}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLMUX_CACHE", str(cache))
        spec = parse_jobs({"version": 1, "jobs": [job | {"rollout": {"engine": "torch"}}]}, "test", Path()).jobs[0]
        made = [RolloutWorker(spec, k, 2, Node(f"rollout-{k}", "rollout", "m", (0,), (), 4.0, "1 core")) for k in range(2)]
        for worker in made:
            worker.open(None)
    yield spec, made
    for worker in made:
        worker.close()


class Worker:
    """An object whose calls are made one after the other, and those `beside` them in a second thread."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self._threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        return self._threads[0].submit(self._do, method, arguments)

    def beside(self, method: str, *arguments: Any) -> Future[Any]:
        return self._threads[1].submit(self._do, method, arguments)

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.held, method)(*(one.result() if isinstance(one, Future) else one for one in arguments))

    def close(self) -> None:
        for threads in self._threads:
            threads.shutdown()
        self.held.close()


class Here:
    """See `runtime.phases.Session`.

    Attributes:
        phases: that have begun: side's iteration and name. begins: is called with these before a phase begins.
    """

    worst_case = False
    parts: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        self.iteration = 0
        self.phases: list[tuple[int, str]] = []
        self.begins: Callable[[int, str], None] = lambda number, phase: None
        self._pauses = Event()

    @contextlib.contextmanager
    def hold(self, job: Any, phase: str) -> Iterator[None]:
        if phase == "rollout" and self._pauses.is_set():
            raise Paused
        self.phases.append((self.iteration, phase))
        self.begins(self.iteration, phase)
        if phase != "sync":
            job.load(phase)
        yield
        if phase != "sync":
            job.offload(phase)

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return (NODES[pool],)

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> Worker:
        return Worker(load_named(target, "")(*arguments, **options))

    def wait(self, calls: Any) -> Any:
        return [call.result() for call in calls] if isinstance(calls, list | tuple) else calls.result()

    def beside(self) -> Here:
        return copy(self)

    def pause(self, pauses: bool) -> None:
        (self._pauses.set if pauses else self._pauses.clear)()

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        return self.parts

    def stops(self) -> bool:
        return False

    def wake(self, responses: int | None) -> None: ...

    def progress(self, done: int, total: int, tokens: int) -> None: ...

    def warn(self, text: str) -> None: ...
