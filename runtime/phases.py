"""The interface for jobs of users' classes: `@phase` on the methods of a class, and `runtime_hook`.

    class MyJob:
        def __init__(self, **options): ...          # the `options` of the job file
        @rollmux.phase("rollout")
        def rollout(self): ...
        @rollmux.phase("train")
        def train(self): ...
        @rollmux.phase("sync")
        def sync(self): ...

In a run, a rollout or training waits for its permit; then the job's state is loaded, the method runs, the state is offloaded, and
the nodes are given back. A sync waits for nothing. Outside of a run the methods are called as if they were not decorated. An
iteration is one rollout, one training and one sync, in this order; the sync is optional.

Optional members of the class:

- `load(phase)` and `offload(phase)`: move the job's state; `phase` is `rollout` or `train`. By default nothing moves.
- `step()`: run one iteration; by default rollout, train and sync.
- `profile()`: run one iteration of the longest kind that leaves the job unchanged. By default `step()` with
  `runtime_hook.worst_case`, after which the job is made again.
- `checkpoint(folder)`: write the job's state into an empty folder. It is called between two iterations, when the job holds no
  nodes. A function that it returns is called in a thread, to write the rest.
- `restore(folder)`: continue from such a folder; called on a new instance.
- `checkpoint_before_training`: an attribute, true if rollouts do not change the job's state, so that a checkpoint of the iteration
  before may be taken between rollout and training.
- `parts()`: the job's rollout nodes divided into parts, some of which are enough for a rollout. Its tail may then migrate.
- `close()`: free the job's resources.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

from rollmux_env.timing.trajectories import Trajectory
from rollmux_env.validation_errors import one_line
from runtime.machine import Node, Pool
from runtime.samples import SampleGroup, make_group

PhaseOfJob = Literal["rollout", "train", "sync"]
_NAMES: dict[str, PhaseOfJob] = {"rollout": "rollout", "training": "train", "train": "train", "sync": "sync"}
POOL_OF: dict[str, Pool] = {"rollout": "rollout", "train": "training"}
_Method = TypeVar("_Method", bound=Callable[..., Any])


class WorkerHandle(Protocol):
    """A process of the job on one of its nodes, which ends with the job."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Begin a call of a method of the worker's object. The result is passed to `runtime_hook.wait`, or to another call.

        Args:
            method: Name of the method, such as `sample`, or `weights.load` for one of an object that the worker's object holds.
            *arguments: Arguments of the method.
        """
        ...

    def call_concurrently(self, method: str, *arguments: Any) -> Any:
        """Begin a call that does not wait for the call in progress; see `call`.

        Only for a job that is asynchronous or has reward workers.

        Args:
            method: Name of the method.
            *arguments: Arguments of the method.
        """
        ...

    def close(self) -> None:
        """End the process, after its object's `close` if it has one."""
        ...


def close_together(closes: Sequence[Callable[[], None]]) -> None:
    """Call the `close` of several workers at the same time: each that is stuck takes 10 s."""
    with ThreadPoolExecutor(max(1, len(closes)), "close") as threads:
        for closing in [threads.submit(close) for close in closes]:
            closing.result()


class Session(Protocol):
    """Interface of a job's process to its run."""

    iteration: int
    worst_case: bool
    parts: tuple[int, ...]

    def hold(self, job: Any, phase: PhaseOfJob) -> AbstractContextManager[None]:
        """Wait for the nodes of a phase and load the job's state; release them at the end of the block."""
        ...

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        """Return the job's nodes of a pool."""
        ...

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        """Start a worker process on a node; it constructs `target` with the arguments."""
        ...

    def wait(self, calls: Any) -> Any:
        """Wait for one or several calls of workers, and return what they return."""
        ...

    def progress(self, done: int, total: int, tokens: int) -> None:
        """Report how many responses of the rollout have ended."""
        ...

    def warn(self, text: str) -> None:
        """Tell the user a line, once."""
        ...

    def stops(self) -> bool:
        """Return whether the rollout has to stop, because nodes or engines are about to change."""
        ...

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        """Let the parts of a tail leave nodes that another job gets; return the parts that remain."""
        ...

    def wake(self, responses: int | None) -> None:
        """Stop the rollout when a number of responses have ended, or None for never."""
        ...

    def second_session(self) -> Session:
        """Return a session for a second thread of the job, with permits for itself."""
        ...

    def pause(self, pauses: bool) -> None:
        """Let no rollout of the second thread begin, or let them begin again."""
        ...


class IterationReports:
    """Reports of a job about an iteration.

    Attributes:
        metrics: Metrics by name.
        samples: Samples for people to read.
        trajectories: Trajectories for replays.
        stages: Seconds of the named stages of the present load or offload.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.samples: list[SampleGroup] = []
        self.trajectories: list[Trajectory] = []
        self.stages: dict[str, float] = {}


class _Side(threading.local):
    """Session and reports of a thread that runs one side of an asynchronous job."""

    session: Session | None = None
    reported: IterationReports | None = None


_session: Session | None = None  # session of this process, which a controller sets
_side = _Side()
_phases_in_use: set[tuple[int, str]] = set()  # Python ids of job objects, with the phases that they are in


def set_session(session: Session | None) -> None:
    """Set the session of this process, or None outside of a run."""
    global _session
    _session = session


def _here() -> Session | None:
    return _side.session or _session


def set_side(session: Session) -> None:
    """Set the session of this thread, which runs the phases of one side of an asynchronous job."""
    _side.session, _side.reported = session, IterationReports()


def phase(name: Literal["rollout", "training", "train", "sync"]) -> Callable[[_Method], _Method]:
    """Mark a method as a phase of its job.

    Args:
        name: Name of the phase: `rollout`, `train` (or `training`, as attached jobs call it) or `sync`.

    Raises:
        ValueError: If the name is another one.
    """
    if name not in _NAMES:
        raise ValueError(f"phase {name!r}: must be 'rollout', 'train' or 'sync'")
    phase = _NAMES[name]

    def mark(method: _Method) -> _Method:
        @functools.wraps(method)
        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            session = _here()
            if session is None:
                return method(self, *arguments, **options)
            if (id(self), phase) in _phases_in_use:  # called by the same phase of a subclass
                return method(self, *arguments, **options)
            _phases_in_use.add((id(self), phase))
            try:
                with session.hold(self, phase):
                    return method(self, *arguments, **options)
            finally:
                _phases_in_use.discard((id(self), phase))

        run.rollmux_phase = phase  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return mark


class RuntimeHook:
    """A job's access to its run. Outside of a run, reports are accepted and not sent."""

    def __init__(self) -> None:
        self._reported = IterationReports()

    @property
    def reported(self) -> IterationReports:
        """Reports of the present iteration so far. An asynchronous job has separate ones for its rollouts and its trainings."""
        return _side.reported or self._reported

    def renew(self) -> None:
        """Clear the reports, at the beginning of an iteration."""
        if _side.reported is not None:
            _side.reported = IterationReports()
        else:
            self._reported = IterationReports()

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics reported in the present iteration, by name."""
        return self.reported.metrics

    @property
    def worst_case(self) -> bool:
        """Whether the profiler is measuring: every response must then have its maximal length."""
        session = _here()
        return session is not None and session.worst_case

    @property
    def iteration(self) -> int:
        """Number of the present iteration, from 0; -1 while the profiler measures."""
        session = _here()
        return session.iteration if session is not None else 0

    def progress(self, done: int, total: int, tokens: int = 0) -> None:
        """Report the progress of the present phase.

        Each process of a job reports its own `done` and `tokens`, which are added up, and the `total` of all processes.

        Args:
            done: Number of finished responses of this process.
            total: Number of responses of the whole phase.
            tokens: Number of tokens that this process has sampled so far.

        Raises:
            TypeError: If a value has a type that is no number, such as None.
            ValueError: If a value is nan, or a text that is no number.
        """
        if (session := _here()) is not None:
            session.progress(int(done), int(total), int(tokens))

    @property
    def parts(self) -> tuple[int, ...]:
        """Numbers of the job's `parts()` that its rollout may use now, from 0.

        These are all of them, unless its own tail has migrated to some or another job's tail still holds some. Empty outside of a
        run.
        """
        session = _here()
        return session.parts if session is not None else ()

    def stops(self) -> bool:
        """Return whether the present rollout must stop at its next step, because the parts that it may use have changed.

        A job with `parts` asks after every step, in its own process or in a worker. A call takes microseconds.
        """
        session = _here()
        return session is not None and session.stops()

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        """Change to the parts that the rollout must use from now on, after it has stopped. Only in the job's own process.

        Args:
            leave: Function called with the numbers of the parts to leave; when it returns, another job gets them.

        Returns:
            Numbers of the parts that the rollout has then.
        """
        return self._run.regroup(leave)

    def wake(self, responses: int | None) -> None:
        """Make `stops` return True once a number of responses have finished, until the next `wake`. Only in the job's own process.

        The finished responses of all of the job's processes count.

        Args:
            responses: Number of responses, or None to cancel.
        """
        if (session := _here()) is not None:
            session.wake(responses)

    def report(self, **metrics: float) -> None:
        """Add metrics of the present iteration.

        Args:
            **metrics: Values by name.

        Raises:
            TypeError: If a value has a type that is no number, such as None.
            ValueError: If a value is a text that is no number.
        """
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def sample(self, prompt: str, responses: Sequence[str], rewards: Sequence[float]) -> None:
        """Record a sample of the present iteration for `rollmux samples`. Only in the job's own process.

        The first eight prompts of an iteration are recorded.

        Args:
            prompt: Text of the prompt.
            responses: Texts of the responses.
            rewards: Reward of each response.

        Raises:
            TypeError: If the prompt or a response is not a text, or a reward is not a number.
            ValueError: If there are not as many rewards as responses.
        """
        self.reported.samples.append(make_group(prompt, responses, rewards))

    def trajectory(
        self,
        group: int,
        prompt: int,
        outputs: Sequence[int],
        observations: Sequence[int] = (),
        seconds: float | None = None,
        switches: int = 0,
    ) -> None:
        """Record a trajectory of the present iteration for replays. Only in the job's own process.

        Args:
            group: Number of the prompt in the iteration. Responses to the same prompt have the same number.
            prompt: Length of the prompt, in tokens.
            outputs: Number of tokens sampled in each turn.
            observations: Number of tokens read between each two turns, such as those of a tool's output.
            seconds: Seconds from the beginning of the rollout to the trajectory's end, or None if they were not measured.
            switches: Number of times that it was interrupted and continued.
        """
        tokens = tuple(map(int, outputs)), tuple(map(int, observations))
        iteration, number = max(self.iteration, 0), len(self.reported.trajectories)
        made = Trajectory(iteration, int(group), int(prompt), *tokens, seconds, int(switches), (), number)
        self.reported.trajectories.append(made)

    def warn(self, text: str) -> None:
        """Print a warning on the console of the run and in the log. In the job's own process or in a worker.

        A repeated warning is left out, even of another process of the job, and so are all but the first 20 of a job.

        Args:
            text: The warning.

        Raises:
            TypeError: If it is not a text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a warning must be a text, not {type(text).__name__}")
        if (session := _here()) is not None:
            session.warn(one_line(text, 500))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the block as a stage of loading or offloading, for the report of cold and warm switches.

        Args:
            name: Name of the stage. The seconds of stages with the same name are added up.
        """
        began = monotonic()
        try:
            yield
        finally:
            stages = self.reported.stages
            stages[name] = stages.get(name, 0.0) + monotonic() - began

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        """Return the nodes of the job's placement in a pool, or an empty tuple outside of a run.

        Args:
            pool: `rollout` or `training`.
        """
        session = _here()
        return session.nodes(pool) if session is not None else ()

    def second_session(self) -> Session:
        """Return a session for the other side of an asynchronous job.

        The thread that runs this side calls `runtime.phases.set_side` with it first.
        """
        return self._run.second_session()

    def pause(self, pauses: bool) -> None:
        """Begin or end a pause of the rollouts of an asynchronous job. A rollout that has its nodes continues.

        Args:
            pauses: Whether a rollout without nodes raises `runtime.phases.Paused` from now on. Otherwise it waits for them.
        """
        self._run.pause(pauses)

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        """Start a process on a node of the job, pinned to its cores or GPUs, that holds an object.

        Args:
            node: Node of the job's placement.
            target: Class of the object, as `module:Class`.
            *arguments: Arguments of its constructor.
            **options: Keyword arguments of its constructor.
        """
        return self._run.start_worker(node, target, *arguments, **options)

    def wait(self, calls: Any) -> Any:
        """Wait for calls of workers, and return the result of one call, or the results of a list of calls in its order.

        Args:
            calls: A call, or a list of calls.

        Raises:
            WorkerError: If a call has failed or its process has died; the message says which one, where and why.
        """
        return self._run.wait(calls)

    @property
    def _run(self) -> Session:
        session = _here()
        if session is None:
            raise RuntimeError("workers can be started in a run alone: there are no nodes here")
        return session


class Paused(Exception):
    """Interruption of a rollout of an asynchronous job, which may not begin because a checkpoint is about to be written."""


class WorkerError(RuntimeError):
    """Failure or death of a worker of a job; one line."""


class WorkerDied(WorkerError):
    """Death of a worker's process. The job is made again and continues from its last checkpoint."""


runtime_hook = RuntimeHook()
