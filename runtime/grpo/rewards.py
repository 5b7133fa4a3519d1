"""Computation of rewards while other responses are still sampled, in separate processes. A reward that takes too long is stopped.

The processes run next to the engine, or in reward workers that the job's engines share. Only built-in rewards that take
microseconds are computed in a thread of the engine's process; a user's function or class never is. A stopped reward counts as
failed, and the job's log says which one it was. The time limit is fixed, or RollPacker's adaptive timeout (arXiv 2509.21009), which
follows from the times that rewards of correct responses took.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock
from typing import Any

from policies.rollout.rounds import RewardTimeout
from runtime.grpo.reward_process import RewardProcess
from runtime.jobs.making import make_task
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import TaskExample, reward_of, score
from runtime.phases import WorkerHandle, runtime_hook

Place = RewardProcess | WorkerHandle

FAILED = 0.0  # reward of a response whose reward computation was stopped


class Rewards:
    """Rewards of an engine's responses. The processes start at once; call `wait_until_ready` before the first reward.

    A reward is computed when its response has ended and one of the processes is free. Each process computes one reward at a time.

    Args:
        spec: Specification of the job.
        workers: Reward workers of the job, each with a `RewardProcess`. Empty means that the processes run next to the engine.

    Attributes:
        learning: Whether rewards of correct responses count for the adaptive timeout.

    Raises:
        InputError: The job's task cannot be made. The message is one line.
    """

    def __init__(self, spec: TaskJob, workers: Sequence[WorkerHandle] = ()) -> None:
        settings = spec.rewards
        self._correct, self._limit_s = settings.correct, None if isinstance(settings.timeout, str) else settings.timeout
        self._timeout = RewardTimeout() if settings.timeout == "adaptive" else None
        self.learning = True
        self._lock, self._grown, self._stopped = Lock(), set[str](), 0
        self._here = make_task(spec.task, spec.seed, spec.folder, reads=False) if spec.task.is_cheap else None
        own = [] if workers or self._here is not None else [RewardProcess(spec) for _ in range(settings.processes)]
        self._places: list[Place] = [*workers, *own]
        self._idle = SimpleQueue[Place]()
        for place in self._places:
            self._idle.put(place)
        self._threads = ThreadPoolExecutor(len(self._places) or 1)

    def wait_until_ready(self) -> None:
        """Wait until all processes are ready.

        Raises:
            RuntimeError: The job's task cannot be made in a process. The message is one line.
        """
        for place in self._places:
            _ask(place, "wait_until_ready")

    def submit(self, example: TaskExample, decode: Callable[[], str], learning: bool = True) -> Future[float]:
        """Begin to compute the reward of a response.

        Args:
            example: Example of the prompt.
            decode: Function that returns the text of the response. It is called in a thread, so that it does not delay sampling.
            learning: Whether the reward may count for the adaptive timeout. It does if the attribute `learning` is true as well.

        Returns:
            The future reward. It raises RuntimeError, with a message of one line, if the computation raised or its result is not a
            finite number.
        """
        return self._threads.submit(self._reward, example, decode, learning and self.learning)

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return `count` examples of a user's own task from `position` on. Its code runs only in the reward processes.

        Raises:
            RuntimeError: The task fails. The message is one line.
        """
        with self._place() as place:
            examples: list[TaskExample] = _ask(place, "prompts", count, position)
        return examples

    def learn(self, anchors: Mapping[str, float]) -> None:
        """Take over anchors that other engines or an earlier object have measured (see `grown_anchors`)."""
        if self._timeout is not None:
            with self._lock:
                self._timeout.learn(anchors)

    def grown_anchors(self) -> tuple[dict[str, float], int]:
        """Return the anchors that have grown, in seconds by test, and how many rewards were stopped, both since the last call."""
        with self._lock:
            anchors = {test: self._timeout.anchors[test] for test in sorted(self._grown)} if self._timeout else {}
            stopped, self._stopped, self._grown = self._stopped, 0, set()
        return anchors, stopped

    def close(self) -> None:
        """Stop the rewards that still run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for place in self._places:
            if isinstance(place, RewardProcess):  # reward workers also serve other engines
                place.close()

    @contextmanager
    def _place(self) -> Iterator[Place]:
        """Wait for an idle process, and reserve it during the block."""
        place = self._idle.get()
        try:
            yield place
        finally:
            self._idle.put(place)

    def _reward(self, example: TaskExample, decode: Callable[[], str], learning: bool) -> float:
        response = decode()
        if self._here is not None:
            return score(self._here, example, response)
        test = name_of(example)
        with self._place() as place:  # there is a place for every thread
            with self._lock:
                limit_s = self._timeout.seconds(test) if self._timeout else self._limit_s
            outcome = _ask(place, "score", example, response, limit_s)
        with self._lock:
            if outcome is None:
                self._stopped += 1
                took = f"was stopped after {limit_s or 0:.3g} s"
                print(f"WARNING: {reward_of(example, response)} {took} and counts as {FAILED:g}")
                return FAILED
            reward, seconds = float(outcome[0]), float(outcome[1])
            known_s = self._timeout.anchors.get(test, 0.0) if self._timeout else seconds
            if self._timeout and reward >= self._correct and learning and seconds > known_s:
                self._timeout.correct(test, seconds)
                self._grown.add(test)
        return reward


def _ask(place: Place, method: str, *arguments: Any) -> Any:
    """Call a method of a `RewardProcess`, here or in a reward worker. In a worker it can also raise WorkerDied."""
    if hasattr(place, "call_concurrently"):
        return runtime_hook.wait(place.call_concurrently(method, *arguments))
    return getattr(place, method)(*arguments)


def name_of(example: TaskExample) -> str:
    """Return a name for an example's test. It does not depend on the example's number."""
    return hashlib.sha256(repr((example.prompt, example.answer)).encode()).hexdigest()[:16]


def merged(anchors: Mapping[str, float], updates: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the anchors with updates applied: the largest value of each test."""
    timeout = RewardTimeout(anchors)
    for update in updates:
        timeout.learn(update)
    return timeout.anchors
