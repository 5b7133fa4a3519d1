"""A run in this process, as far as a built-in job needs one: its workers are threads, and permits are given at once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from policies.placement.policy_file import PolicyConfig, write_policy
from rollmux_env.envs.rollout.observation import JOB_FEATURES, ROW_FEATURES, STATE_FEATURES
from runtime.grpo.engine_slots import engine_slots_of
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.jobs.named import load_named
from runtime.jobs.spec import TaskJob
from runtime.machine import Node, Pool
from runtime.phases import Paused
from tests.runtime.jobs.task_job import task_job

NODES: dict[Pool, Node] = {
    "rollout": Node("rollout-0", "rollout", "m", (0,), (), 4.0, "1 core"),
    "training": Node("training-0", "training", "m", (1,), (), 4.0, "1 core"),
}
TWO_CORES = Node("rollout-0", "rollout", "m", (0, 1), (), 4.0, "2 cores")


@contextlib.contextmanager
def two_engines(algorithm: dict[str, int], cache: Path) -> Iterator[tuple[TaskJob, list[RolloutWorker]]]:
    """Two engines of a job, and its spec.

    Args:
        cache: folder for its model.
    """
    with _engines(algorithm, cache, [NODES["rollout"]] * 2) as made:
        yield made


@contextlib.contextmanager
def engines_of_two_sizes(algorithm: dict[str, int], cache: Path, policy: str) -> Iterator[tuple[TaskJob, list[RolloutWorker]]]:
    """On a node of two cores two engines of one core, and one of both, which sleeps; arguments and what it gives as above."""
    with _engines(algorithm, cache, [TWO_CORES], policy=policy, sizes=[2]) as (spec, made):
        made[2].residency.offload()
        yield spec, made


def always_resizes(path: Path) -> str:
    """A learned policy, in a file there, that goes to engines of another size whenever it is asked."""
    config = PolicyConfig(
        decides="rollout",
        job_features=JOB_FEATURES,
        candidate_features=ROW_FEATURES,
        cluster_features=STATE_FEATURES,
        widths=(1,),
    )
    weights = {name: np.zeros(shape, np.float32) for name, shape in config.weight_sizes().items()}
    weights["skip.weight"][0, ROW_FEATURES.index("resize")] = 1.0
    write_policy(path, config, weights)
    return f"learned:{path}"


@contextlib.contextmanager
def _engines(
    algorithm: dict[str, int], cache: Path, nodes: Sequence[Node], **rollout: Any
) -> Iterator[tuple[TaskJob, list[RolloutWorker]]]:
    model = {"name": "tiny", "hidden_size": 64, "layers": 1}
    job: dict[str, Any] = {"id": "a", "slo": 2, "iterations": 1, "task": "long-tail", "model": model, "algorithm": algorithm}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLMUX_CACHE", str(cache))
        spec = task_job(job | {"rollout": {"engine": "torch", **rollout}})
        seats = engine_slots_of(nodes, spec.rollout)
        together = Counter(seat.size for seat in seats)
        made = [RolloutWorker(spec, k, len(seats), seat.node, (), together[seat.size]) for k, seat in enumerate(seats)]
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

    def call_concurrently(self, method: str, *arguments: Any) -> Future[Any]:
        return self._threads[1].submit(self._do, method, arguments)

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return attrgetter(method)(self.held)(*(one.result() if isinstance(one, Future) else one for one in arguments))

    def close(self) -> None:
        for threads in self._threads:
            threads.shutdown()
        if hasattr(self.held, "close"):
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

    def second_session(self) -> Here:
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
