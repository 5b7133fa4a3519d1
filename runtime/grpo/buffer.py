"""What a stale job has sampled and not trained on yet: rollouts go in on one side, trainings take them out on the other.

S1  no sample is older than the job's staleness when it is trained: 0 <= trained version - sampled version <= staleness, by token

Version v are the weights after v trainings. Rollout k, which training k is on, begins only when weights of version k - staleness
or newer are with the engines, and there are none newer than k before training k: that bounds the buffer too, at staleness + 1
rollouts. (AReaL, arXiv 2505.24298, section 5.1, counts the same in trajectories: floor((N - 1) / B) <= version + staleness, with N
of them begun and batches of B.) Training asserts S1 of every token before it uses it (`check_versions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from runtime.grpo.messages import Rolled
from runtime.phases import Reported


def check_versions(trained: int, versions: NDArray[np.int64], staleness: int) -> None:
    """Assert S1.

    Args:
        trained: version of the weights that are about to be trained. versions: that sampled the tokens, one each.

    Raises:
        RuntimeError: a token is too old, or newer than what is trained; one line.
    """
    if len(versions) and not trained - staleness <= versions.min() <= versions.max() <= trained:
        span = f"{versions.min()} to {versions.max()}" if versions.min() < versions.max() else f"{versions.min()}"
        problem = f"S1: responses were sampled with version {span} of the weights, trained is version {trained}"
        raise RuntimeError(f"{problem} with a staleness of {staleness}")


@dataclass(frozen=True)
class Rollout:
    """A rollout that waits for its training.

    Attributes:
        number: from 0, of the iteration that trains on it. rolled: what it has brought. reported: what it has said of itself.
    """

    number: int
    rolled: Rolled
    reported: Reported = field(default_factory=Reported)


class SampleBuffer:
    """The buffer, between the thread that samples and the one that trains; both wait in it.

    Args:
        staleness: of the job. iterations: how many it does. version: of the weights, now. rollouts: those in it already, in order.

    Raises:
        ValueError: those are not the next ones.
    """

    def __init__(self, staleness: int, iterations: int, version: int = 0, rollouts: Iterable[Rollout] = ()) -> None:
        self._staleness, self._iterations = staleness, iterations
        self._landed = self._trained = version  # with the engines, and in all
        self._rollouts = [*rollouts]
        numbers = [rollout.number for rollout in self._rollouts]
        if numbers != [*range(version, version + len(numbers))] or len(numbers) > staleness + 1:
            raise ValueError(f"rollouts {numbers} do not follow {version} trainings with a staleness of {staleness}")
        self._condition = Condition()
        self._samples = self._pauses = self._closed = False
        self._error: BaseException | None = None

    @property
    def version(self) -> int:
        """Trainings that are over."""
        return self._trained

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """What waits for its training, the oldest first."""
        with self._condition:
            return [*self._rollouts]

    def begin(self) -> int | None:
        """Wait until the next rollout may begin.

        Returns:
            Its number; or None: there is no other one.
        """
        with self._condition:
            while not self._closed:
                number = self._trained + len(self._rollouts)
                if number == self._iterations:
                    return None
                if not self._pauses and number <= self._landed + self._staleness:
                    self._samples = True
                    return number
                self._condition.wait()
            return None

    def put(self, rollout: Rollout) -> None:
        """The rollout that has begun is over."""
        with self._condition:
            self._rollouts.append(rollout)
            self._samples = False
            self._condition.notify_all()

    def drop(self) -> None:
        """The rollout that has begun is not to be: another time it begins anew."""
        with self._condition:
            self._samples = False
            self._condition.notify_all()

    def take(self, number: int) -> Rollout:
        """Wait for a rollout, the oldest one; it stays until it is `trained`.

        Raises:
            BaseException: whatever has ended the sampling.
        """
        with self._condition:
            while not self._rollouts:
                if self._error is not None:
                    raise self._error
                self._condition.wait()
            rollout = self._rollouts[0]
        if rollout.number != number:
            raise RuntimeError(f"S1: rollout {rollout.number} is the oldest, training {number} is next")
        return rollout

    def trained(self) -> None:
        """The oldest rollout was trained on."""
        with self._condition:
            del self._rollouts[0]
            self._trained += 1

    def landed(self) -> None:
        """The weights of the last training are with the engines."""
        with self._condition:
            self._landed = self._trained
            self._condition.notify_all()

    def pause(self) -> None:
        """No further rollout is to begin."""
        with self._condition:
            self._pauses = True

    def wait_until_idle(self) -> None:
        """Wait until none is under way."""
        with self._condition:
            while self._samples and self._error is None:
                self._condition.wait()

    def resume(self) -> bool:
        """Rollouts go on; whether they had paused."""
        with self._condition:
            paused, self._pauses = self._pauses, False
            self._condition.notify_all()
            return paused

    def fail(self, error: BaseException) -> None:
        """Sampling has ended before its time: whoever waits for a rollout is told when there are no others."""
        with self._condition:
            self._error, self._samples = error, False
            self._condition.notify_all()

    def close(self) -> None:
        """Nothing more is to be sampled."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
