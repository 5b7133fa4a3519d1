"""Rewards are computed while other responses are still sampled; with a timeout, where a run of them can be stopped.

Without a timeout a thread of the engine's process calls the task. With one (RollPacker, arXiv 2509.21009) processes of their own
do, and one that takes longer than its test may is killed: the response counts as failed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock
from typing import Any, Protocol

from policies.rollout.rewards import RewardTimeout
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import Example, Task, score

FAILED = 0.0  # the reward of a response whose run was stopped


class RewardRunner(Protocol):
    """Where rewards run, one at a time."""

    def score(self, example: Example, response: str, limit_s: float) -> tuple[float, float] | None:
        """(reward, seconds that it took), or None: it was stopped after `limit_s`. Raises RuntimeError, as `tasks.score` does."""
        ...

    def close(self) -> None: ...


class Rewards:
    """The rewards of an engine's responses.

    Args:
        task: that a thread calls where `spec.rewards` has no timeout. anchors: of the timeout, as `news` gave them out earlier.
        make_runner: of one place where rewards can be stopped.

    Attributes:
        learning: runs of correct responses count for the timeout.
    """

    def __init__(
        self,
        spec: JobSpec,
        task: Task,
        anchors: Mapping[str, float] | None = None,
        make_runner: Callable[[JobSpec], RewardRunner] | None = None,
    ) -> None:
        settings = spec.rewards
        self._task, self._correct = task, settings.correct
        self._timeout = RewardTimeout(anchors) if settings.timeout == "adaptive" else None
        self.learning = True
        self._lock, self._news, self._stopped = Lock(), set[str](), 0
        self._runners = [(make_runner or RewardProcess)(spec) for _ in range(settings.processes)] if self._timeout else []
        self._idle = SimpleQueue[RewardRunner]()
        for runner in self._runners:
            self._idle.put(runner)
        self._threads = ThreadPoolExecutor(settings.processes)

    def submit(self, example: Example, decode: Callable[[], str]) -> Future[float]:
        """Begin with a response's reward; `decode` gives its text, and is called where it does not hold up sampling.

        The result raises RuntimeError: the reward raised, or is no finite number; one line.
        """
        return self._threads.submit(self._reward, example, decode)

    def learn(self, anchors: Mapping[str, float]) -> None:
        """What other engines have seen."""
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
        for runner in self._runners:
            runner.close()

    def _reward(self, example: Example, decode: Callable[[], str]) -> float:
        if self._timeout is None:
            return score(self._task, example, decode())
        test = name_of(example)
        runner = self._idle.get()  # there is one for every thread
        try:
            with self._lock:
                limit_s = self._timeout.seconds(test)
            outcome = runner.score(example, decode(), limit_s)
        finally:
            self._idle.put(runner)
        with self._lock:
            if outcome is None:
                self._stopped += 1
                return FAILED
            reward, seconds = outcome
            if reward >= self._correct and self.learning and seconds > self._timeout.anchors.get(test, 0.0):
                self._timeout.correct(test, seconds)
                self._news.add(test)
        return reward


def name_of(example: Example) -> str:
    """What stands for an example's test, whatever number it comes under."""
    return hashlib.sha256(repr((example.prompt, example.answer)).encode()).hexdigest()[:16]


def merged(anchors: Mapping[str, float], news: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Anchors, the largest of each test."""
    timeout = RewardTimeout(anchors)
    for update in news:
        timeout.learn(update)
    return timeout.anchors


class RewardProcess:
    """A process of its own that makes the job's task and computes its rewards; it is started when it is needed.

    It leads a process group, so that what a test has started ends with it, and ends itself when its parent has died.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def score(self, example: Example, response: str, limit_s: float) -> tuple[float, float] | None:
        """See `RewardRunner`.

        Raises:
            RuntimeError: as `tasks.score`, or the process has died; one line.
        """
        line = self._line or self._start()
        answer: tuple[float, float] | None = self._asked(line, (example, response), limit_s)
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        """Kill it, and what it has started."""
        if self._process is not None and self._line is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._line.close()
        self._process = self._line = None

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "runtime.grpo.reward_process", str(theirs.fileno()), str(os.getpid())]
        path = os.pathsep.join(entry for entry in sys.path if entry)  # so that it finds what this process finds
        self._process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), start_new_session=True, env=os.environ | {"PYTHONPATH": path}
        )
        theirs.close()
        self._line = Connection(ours.detach())
        self._asked(self._line, (self._spec.task, self._spec.seed, self._spec.folder), None)
        return self._line

    def _asked(self, line: Connection, what: Any, limit_s: float | None) -> Any:
        """The answer; None where there was none in time."""
        try:
            line.send(what)
            if not line.poll(limit_s):
                return None
            answer = line.recv()
        except (EOFError, ConnectionError):
            status = self._process.wait() if self._process else 0
            self.close()
            raise RuntimeError(f"the process of the job's rewards ended with status {status}") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer
