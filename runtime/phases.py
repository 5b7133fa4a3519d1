"""What a job of the user's own is written with: `@phase` on the methods of a class, and `runtime_hook`.

    class MyJob:
        def __init__(self, **options): ...          # the `options` of the job file
        @rollmux.phase("rollout")
        def rollout(self): ...
        @rollmux.phase("train")
        def train(self): ...
        @rollmux.phase("sync")
        def sync(self): ...

In a run, a rollout or training waits for its permit, then the job's state is loaded, the method runs, the state is offloaded, and
the nodes are given back. A sync waits for nothing. Outside of a run the methods are called as if they were not decorated.
An iteration is one rollout, one training and one sync, in this order; the sync may be left out.

Optional methods: `load(phase)` and `offload(phase)` (phase is `rollout` or `train`; by default nothing moves), `step()` (one
iteration; by default rollout, train and sync), `profile()` (one iteration at its longest that leaves the job as it was; by default
`step()` with `runtime_hook.worst_case`, and the job is then made anew), `checkpoint(folder)` (write what the job is into an empty
folder; called between two iterations, when it holds no nodes; a function that it returns is called in a thread, to write the rest),
`restore(folder)` (go on from that; called on a new instance), `checkpoint_before_training` (an attribute: true where its rollouts
leave what it is as it was, so that a stop in between may ask for a checkpoint of the iteration before),
`parts()` (its rollout nodes cut into parts, some of which are enough for a rollout: its tail may then be migrated), and `close()`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Literal, Protocol, TypeVar

from rollmux_env.timing.trajectories import Trajectory
from rollmux_env.validation_errors import one_line
from runtime.machine import Node, Pool
from runtime.samples import Group, make_group

PhaseOfJob = Literal["rollout", "train", "sync"]
POOL_OF: dict[str, Pool] = {"rollout": "rollout", "train": "training"}
_Method = TypeVar("_Method", bound=Callable[..., Any])


class WorkerHandle(Protocol):
    """A process of the job's own on one of its nodes; it ends with the job."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Begin a call of a method of its object; what it returns goes to `runtime_hook.wait`, or into another call."""
        ...

    def beside(self, method: str, *arguments: Any) -> Any:
        """As `call`, of a job that is asynchronous or has reward workers: it does not wait for the call that is under way."""
        ...

    def close(self) -> None:
        """End the process, after its object's `close`, if it has one."""
        ...


class Session(Protocol):
    """The run, as a job's process sees it."""

    iteration: int
    worst_case: bool
    parts: tuple[int, ...]

    def hold(self, job: Any, phase: PhaseOfJob) -> AbstractContextManager[None]: ...
    def nodes(self, pool: Pool) -> tuple[Node, ...]: ...
    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle: ...
    def wait(self, calls: Any) -> Any: ...
    def progress(self, done: int, total: int, tokens: int) -> None: ...
    def warn(self, text: str) -> None: ...
    def stops(self) -> bool: ...
    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]: ...
    def wake(self, responses: int | None) -> None: ...
    def beside(self) -> Session: ...
    def pause(self, pauses: bool) -> None: ...


class Reported:
    """What a job says of an iteration.

    Attributes:
        metrics: by name. stages: seconds of named parts of the load or offload in hand.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.samples: list[Group] = []
        self.trajectories: list[Trajectory] = []
        self.stages: dict[str, float] = {}


class _Side(threading.local):
    """A thread that runs the phases of one side of an asynchronous job has a session of its own, and what it reports apart."""

    session: Session | None = None
    reported: Reported | None = None


_session: Session | None = None  # of this process; a controller sets it
_side = _Side()
_phases_in_use: set[tuple[int, str]] = set()  # ids of jobs, and the phases that they are in


def set_session(session: Session | None) -> None:
    """Put this process into a run, or out of it."""
    global _session
    _session = session


def _here() -> Session | None:
    return _side.session or _session


def set_side(session: Session) -> None:
    """This thread runs the phases of one side of an asynchronous job."""
    _side.session, _side.reported = session, Reported()


def phase(name: PhaseOfJob) -> Callable[[_Method], _Method]:
    """Mark a method as a phase of its job.

    Args:
        name: `rollout`, `train` or `sync`.
    """
    if name not in ("rollout", "train", "sync"):
        raise ValueError(f"phase {name!r}: must be 'rollout', 'train' or 'sync'")

    def mark(method: _Method) -> _Method:
        @functools.wraps(method)
        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            session = _here()
            if session is None:
                return method(self, *arguments, **options)
            if (id(self), name) in _phases_in_use:  # by the method that has called this one, of the class below
                return method(self, *arguments, **options)
            _phases_in_use.add((id(self), name))
            try:
                with session.hold(self, name):
                    return method(self, *arguments, **options)
            finally:
                _phases_in_use.discard((id(self), name))

        run.rollmux_phase = name  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return mark


class RuntimeHook:
    """The way from a job's code to the run that it is part of; outside of a run it takes reports and forgets them."""

    def __init__(self) -> None:
        self._reported = Reported()

    @property
    def reported(self) -> Reported:
        """What has been said so far: of this side of the job, where it has two."""
        return _side.reported or self._reported

    def renew(self) -> None:
        """An iteration begins: nothing has been said of it."""
        if _side.reported is not None:
            _side.reported = Reported()
        else:
            self._reported = Reported()

    @property
    def metrics(self) -> dict[str, float]:
        """Reported for the iteration in hand, by name."""
        return self.reported.metrics

    @property
    def worst_case(self) -> bool:
        """The profiler measures: every response is to be as long as it may get."""
        session = _here()
        return session is not None and session.worst_case

    @property
    def iteration(self) -> int:
        """Number of the iteration in hand, from 0; -1 while the profiler measures."""
        session = _here()
        return session.iteration if session is not None else 0

    def progress(self, done: int, total: int, tokens: int = 0) -> None:
        """Say how far the phase in hand is.

        Args:
            done: responses that are finished, of `total`. tokens: sampled so far. A worker says what it has done itself, of the
                total of the whole phase: what a job's processes say is added up.

        Raises:
            TypeError, ValueError: one is no number.
        """
        if (session := _here()) is not None:
            session.progress(int(done), int(total), int(tokens))

    @property
    def parts(self) -> tuple[int, ...]:
        """Numbers of those of the job's `parts()` that its rollout may use now; all of them, but beside a migrated tail."""
        session = _here()
        return session.parts if session is not None else ()

    def stops(self) -> bool:
        """Whether the rollout in hand is to stop at its next step, because the parts that it may use have changed; in the job's own
        process or in a worker. To be asked after every step by a job that has `parts`; it costs microseconds."""
        session = _here()
        return session is not None and session.stops()

    def regroup(self, leave: Callable[[tuple[int, ...]], None]) -> tuple[int, ...]:
        """Take up the parts that the rollout is to use from now on, after it has stopped; in the job's own process.

        Args:
            leave: called with the numbers of those that it has to leave: they go to another job when it returns.

        Returns:
            The numbers of those that it has then.
        """
        return self._run.regroup(leave)

    def wake(self, responses: int | None) -> None:
        """Let the rollout in hand stop at its next step once so many of its responses have finished, by `progress` of all of the
        job's processes; None: not for that. In the job's own process; `stops` says it then, until the next `wake`."""
        if (session := _here()) is not None:
            session.wake(responses)

    def report(self, **metrics: float) -> None:
        """Add metrics to those of the iteration in hand.

        Raises:
            TypeError, ValueError: one is no number.
        """
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def sample(self, prompt: str, responses: Sequence[str], rewards: Sequence[float]) -> None:
        """Show what was sampled in the iteration in hand to who asks by `rollmux samples`; in the job's own process.

        The first eight prompts of an iteration are kept.

        Args:
            rewards: one a response.

        Raises:
            TypeError, ValueError: a text is none, a reward is no number, or there are not as many of them as responses.
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
        """Say what a response of the iteration in hand was like, for replays; in the job's own process.

        Args:
            group: number of its prompt. prompt: tokens of it. outputs: sampled, of each turn. observations: tokens read between
                two turns.
            seconds: from the beginning of the rollout to its end. switches: how often it was interrupted and went on.
        """
        tokens = tuple(map(int, outputs)), tuple(map(int, observations))
        iteration, number = max(self.iteration, 0), len(self.reported.trajectories)
        made = Trajectory(iteration, int(group), int(prompt), *tokens, seconds, int(switches), (), number)
        self.reported.trajectories.append(made)

    def warn(self, text: str) -> None:
        """Tell the user a line, on the console of the run and in the log; in the job's own process or in a worker.

        What is said again is left out, also by another process of the job, and so are all but the first 20 warnings of a job.

        Raises:
            TypeError: it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a warning must be a text, not {type(text).__name__}")
        if (session := _here()) is not None:
            session.warn(one_line(text, 500))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name a part of loading or offloading, for the report of cold and warm switches."""
        began = monotonic()
        try:
            yield
        finally:
            stages = self.reported.stages
            stages[name] = stages.get(name, 0.0) + monotonic() - began

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        """The nodes of the job's placement; none outside of a run."""
        session = _here()
        return session.nodes(pool) if session is not None else ()

    def beside(self) -> Session:
        """A session for the other side of an asynchronous job: for `set_side`, in a thread of its own."""
        return self._run.beside()

    def pause(self, pauses: bool) -> None:
        """Whether an asynchronous job's rollouts are not to wait for permits: they raise; one that has its permit goes on."""
        self._run.pause(pauses)

    def start_worker(self, node: Node, target: str, *arguments: Any, **options: Any) -> WorkerHandle:
        """Start a process on a node of the job's, pinned to its cores or GPUs, that holds an object.

        Args:
            target: `module:Class` of the object. arguments, options: of its constructor.
        """
        return self._run.start_worker(node, target, *arguments, **options)

    def wait(self, calls: Any) -> Any:
        """The results of calls of workers: of one, or of a list of them in its order.

        Raises:
            WorkerError: one has failed, or its process has died; the message says which, where and why.
        """
        return self._run.wait(calls)

    @property
    def _run(self) -> Session:
        session = _here()
        if session is None:
            raise RuntimeError("workers can be started in a run alone: there are no nodes here")
        return session


class Paused(Exception):
    """A rollout of an asynchronous job is not to begin now, since the job is about to write down what it is."""


class WorkerError(RuntimeError):
    """A worker of a job has failed or died: one line."""


class WorkerDied(WorkerError):
    """A worker's process has ended by itself; the job is made anew and goes on from its last checkpoint."""


runtime_hook = RuntimeHook()
