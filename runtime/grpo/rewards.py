"""Rewards are computed while other responses are still sampled, in processes of their own: one that takes too long is stopped.

The processes are beside the engine, or those of reward workers that the job's engines share. Only built-in rewards that take
microseconds are computed in a thread of the engine's process; a user's function or class never is. A reward that is stopped counts
as failed, and the job's log says which. How long one may take is fixed, or RollPacker's timeout (arXiv 2509.21009), which goes by
how long those of correct responses took.
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
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import Example, is_cheap, make_task, reward_of, score
from runtime.phases import WorkerHandle, runtime_hook

Place = RewardProcess | WorkerHandle

FAILED = 0.0  # the reward of a response whose run was stopped


class Rewards:
    """The rewards of an engine's responses. Processes are begun to be started at once: `wait_until_ready` before the first reward.

    A reward begins when its response is over and one of the places is free: no place gets a second one before.

    Args:
        workers: of the job, that hold a `RewardProcess` each; nothing: so many processes beside the engine as the job wants.

    Attributes:
        learning: runs of correct responses count for the timeout.

    Raises:
        InputError: the job's task cannot be made; one line.
    """

    def __init__(self, spec: JobSpec, workers: Sequence[WorkerHandle] = ()) -> None:
        assert spec.task is not None
        settings = spec.rewards
        self._correct, self._limit_s = settings.correct, None if isinstance(settings.timeout, str) else settings.timeout
        self._timeout = RewardTimeout() if settings.timeout == "adaptive" else None
        self.learning = True
        self._lock, self._news, self._stopped = Lock(), set[str](), 0
        self._here = make_task(spec.task, spec.seed, spec.folder, reads=False) if is_cheap(spec.task) else None
        own = [] if workers or self._here is not None else [RewardProcess(spec) for _ in range(settings.processes)]
        self._places: list[Place] = [*workers, *own]
        self._idle = SimpleQueue[Place]()
        for place in self._places:
            self._idle.put(place)
        self._threads = ThreadPoolExecutor(len(self._places) or 1)

    def wait_until_ready(self) -> None:
        """Wait for the processes.

        Raises:
            RuntimeError: the job's task cannot be made there; one line.
        """
        for place in self._places:
            _ask(place, "wait_until_ready")

    def submit(self, example: Example, decode: Callable[[], str], learning: bool = True) -> Future[float]:
        """Begin with a response's reward.

        Args:
            decode: gives its text, and is called where it does not hold up sampling. learning: as of this object; both must be.

        Returns:
            The reward; it raises RuntimeError where that raised, or is no finite number; one line.
        """
        return self._threads.submit(self._reward, example, decode, learning and self.learning)

    def prompts(self, count: int, position: int) -> list[Example]:
        """Those of a task of the user's own; where rewards run, since its code runs nowhere else.

        Raises:
            RuntimeError: it fails; one line.
        """
        with self._place() as place:
            examples: list[Example] = _ask(place, "prompts", count, position)
        return examples

    def learn(self, anchors: Mapping[str, float]) -> None:
        """What other engines have measured, or an earlier object: see `news`."""
        if self._timeout is not None:
            with self._lock:
                self._timeout.learn(anchors)

    def news(self) -> tuple[dict[str, float], int]:
        """{test: anchor} of those that have grown, and how many runs were stopped, both since the last call."""
        with self._lock:
            anchors = {test: self._timeout.anchors[test] for test in sorted(self._news)} if self._timeout else {}
            stopped, self._stopped, self._news = self._stopped, 0, set()
        return anchors, stopped

    def close(self) -> None:
        """Stop what still runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for place in self._places:
            if isinstance(place, RewardProcess):  # workers have other engines too
                place.close()

    @contextmanager
    def _place(self) -> Iterator[Place]:
        """One that is idle, as soon as there is one."""
        place = self._idle.get()
        try:
            yield place
        finally:
            self._idle.put(place)

    def _reward(self, example: Example, decode: Callable[[], str], learning: bool) -> float:
        response = decode()
        if self._here is not None:
            return score(self._here, example, response)
        test = name_of(example)
        with self._place() as place:  # there is one for every thread
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
                self._news.add(test)
        return reward


def _ask(place: Place, method: str, *arguments: Any) -> Any:
    """What a method of a `RewardProcess` says; raises WorkerDied too where it is a worker's."""
    if hasattr(place, "beside"):
        return runtime_hook.wait(place.beside(method, *arguments))
    return getattr(place, method)(*arguments)


def name_of(example: Example) -> str:
    """What stands for an example's test, whatever number it comes under."""
    return hashlib.sha256(repr((example.prompt, example.answer)).encode()).hexdigest()[:16]


def merged(anchors: Mapping[str, float], news: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Anchors, the largest of each test."""
    timeout = RewardTimeout(anchors)
    for update in news:
        timeout.learn(update)
    return timeout.anchors
