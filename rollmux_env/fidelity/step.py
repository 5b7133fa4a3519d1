"""The rest of a step after a rollout: tests that reward its responses, and the training, apart or beside the rollout.

A test runs on one of several workers, as soon as its response has ended or once the rollout is over. Training takes whole prompts
in the order in which their last reward comes, because an advantage is relative to all responses to a prompt. Until the rollout is
over it may run on a part of the GPUs, as with RollPacker's stream trainer (arXiv 2509.21009), or on separate GPUs, as with
complete groups in RolloutPipe (arXiv 2606.26997).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.rewards import reward_seconds


class RewardLimit(Protocol):
    """Protocol of the time limits of runs."""

    def seconds(self, test: str) -> float:
        """Return the time limit of the next run of a test in seconds."""
        ...

    def correct(self, test: str, seconds: float) -> None:
        """Record the seconds that the test of a correct response took."""
        ...


@dataclass(frozen=True)
class RewardLaw(Checked):
    """Distribution of the seconds that tests of responses take, without a time limit.

    Attributes:
        points: Pairs of a share of the tests and the seconds that this share does not exceed. Both rise. Values between two points
            are interpolated. The tests beyond the last share never end.
        correct: Share of correct responses among those whose tests end.

    Raises:
        InputError: If there are no points, they do not rise, or a share is out of range.
    """

    points: tuple[tuple[float, float], ...]
    correct: Annotated[float, Field(ge=0, le=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.points or any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(((0.0, 0.0), *self.points))):
            raise InputError("rewards: points must rise in share and seconds, from above 0")
        if self.points[-1][0] > 1:
            raise InputError("rewards: shares of the points must be at most 1")

    def draw(self, generator: np.random.Generator, count: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Draw the tests of some responses.

        Args:
            generator: Source of the random numbers.
            count: Number of responses.

        Returns:
            Seconds of each test, infinite if it never ends, and whether its response is correct, each of shape (count,).
        """
        scores = generator.random(count)
        runs_s = np.where(scores <= self.points[-1][0], reward_seconds(self.points, scores), np.inf)
        return runs_s, (generator.random(count) < self.correct) & np.isfinite(runs_s)


@dataclass(frozen=True)
class RewardRuns:
    """The tests of a rollout's responses, in the order in which they may begin.

    Attributes:
        ready_s: Time from which each test may begin, in seconds, ascending, shape (n,).
        runs_s: Seconds of each test without a limit, shape (n,).
        correct: Whether each response is correct, shape (n,).
        names: Number of the prompt of each response, which names its test, shape (n,).
    """

    ready_s: Floats
    runs_s: Floats
    correct: NDArray[np.bool_]
    names: Ints


def reward_run_ends(runs: RewardRuns, workers: int, limits: RewardLimit) -> Floats:
    """Return when each test has ended or reached its limit, in seconds, shape (n,).

    A test takes the first free worker. Its limit is the one at its beginning, which depends on the correct runs that have ended.

    Args:
        runs: Tests of one rollout.
        workers: Number of tests that run at once.
        limits: Time limits, which learn from correct runs.
    """
    ends_s, free_s = np.empty(runs.ready_s.size), [0.0] * workers
    running: list[tuple[float, str, float]] = []  # heap of correct runs: end, test, seconds
    for k, ready_s in enumerate(runs.ready_s.tolist()):
        begin_s, name, run_s = max(ready_s, heapq.heappop(free_s)), str(runs.names[k]), float(runs.runs_s[k])
        while running and running[0][0] <= begin_s:
            limits.correct(*heapq.heappop(running)[1:])
        limit_s = limits.seconds(name)
        ends_s[k] = begin_s + min(run_s, limit_s)
        heapq.heappush(free_s, float(ends_s[k]))
        if runs.correct[k] and run_s <= limit_s:
            heapq.heappush(running, (float(ends_s[k]), name, run_s))
    for _, name, run_s in running:
        limits.correct(name, run_s)
    return ends_s


def trained_s(ready_s: Floats, work_s: Floats, from_s: float, rate: float, over_s: float) -> float:
    """Return when a training on whole prompts has ended, in seconds.

    Args:
        ready_s: Time from which each prompt may be trained on, in seconds, shape (n,).
        work_s: Seconds of each prompt's training at full speed, shape (n,).
        from_s: Time at which training may begin, in seconds.
        rate: Speed of training until the rollout is over, relative to full speed.
        over_s: End of the rollout, in seconds. Training ends no earlier.
    """
    now_s = from_s
    for k in np.argsort(ready_s, kind="stable").tolist():
        now_s = max(now_s, float(ready_s[k]))
        slow_s = min(float(work_s[k]), max(0.0, over_s - now_s) * rate)  # the part that is trained beside the rollout
        now_s += slow_s / rate + float(work_s[k]) - slow_s
    return max(now_s, over_s)
