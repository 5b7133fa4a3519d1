"""The built-in job with a staleness: its rollouts go on in a thread of their own while it trains.

Each side asks for its own permits. New weights go to the rollout nodes' host memory beside a rollout, and its engines take them
when the next one begins, or, with `rollout.interruptible`, in the middle of responses. What is sampled waits in a buffer, which is
in the checkpoint with the weights, so that a job that goes on elsewhere trains on what it had.

S1  no sample is older than the job's staleness when it is trained: 0 <= trained version - sampled version <= staleness, by token

Version v are the weights after v trainings. Rollout k, which training k is on, begins only when weights of version k - staleness
or newer are with the engines, and there are none newer than k before training k: that bounds the buffer too, at staleness + 1
rollouts. (AReaL, arXiv 2505.24298, section 5.1, counts the same in trajectories: floor((N - 1) / B) <= version + staleness, with N
of them begun and batches of B.) Training asserts S1 of every token before it uses it: `check_versions` of its worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Condition, RLock, Thread

from runtime.grpo.job import Grpo
from runtime.grpo.messages import Rolled, Rollout
from runtime.grpo.state import read_rollouts, write_rollouts
from runtime.jobs.spec import JobSpec
from runtime.phases import Paused, Session, runtime_hook, set_side

_ENDS_S = 10.0  # in which a rollout whose engines have gone comes to its end


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


class AsynchronousGrpo(Grpo):
    """One GRPO job, see `Grpo`.

    Args:
        spec: of the job file, with a staleness.
    """

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec, concurrent=True)
        self._buffer = SampleBuffer(spec.staleness, spec.iterations)
        self._sampler: Thread | None = None
        self._counted = RLock()  # the buffer goes with where the job is in its data

    @property
    def sampled_ahead(self) -> int:
        """Rollouts that it has not trained on yet."""
        return len(self._buffer.rollouts)

    def step(self) -> None:
        """One iteration: a training on the oldest rollout, and the sync."""
        if self._buffer.resume():
            runtime_hook.pause(False)
        if self._sampler is None:
            self._sampler = Thread(target=self._sample, args=(runtime_hook.beside(),), name="rollouts", daemon=True)
            self._sampler.start()
        reported = self._buffer.take(runtime_hook.iteration).reported
        runtime_hook.metrics.update(reported.metrics)
        runtime_hook.reported.samples.extend(reported.samples)
        runtime_hook.reported.trajectories.extend(reported.trajectories)
        self.train()
        self._buffer.trained()
        self.sync()
        self._buffer.landed()

    def pause(self) -> None:
        """Let no rollout be under way, until the next step: one that has its permit ends first."""
        self._buffer.pause()
        runtime_hook.pause(True)
        self._buffer.wait_until_idle()

    def close(self) -> None:
        """End the workers, and with them a rollout that is under way."""
        sampler, self._sampler = self._sampler, None
        self._buffer.close()
        with contextlib.suppress(Exception):  # the run may be over
            runtime_hook.pause(sampler is not None)  # so that it waits for no permit
        super().close()
        if sampler is not None:
            sampler.join(_ENDS_S)
            with contextlib.suppress(Exception):
                runtime_hook.pause(False)  # who is made in its place goes on

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint as soon as workers are started, with the samples that are in it."""
        super().restore(folder)
        version, rollouts = read_rollouts(folder)
        self._buffer = SampleBuffer(self._spec.staleness, self._spec.iterations, version, rollouts)

    def _write(self, folder: Path) -> None:
        with self._counted:
            super()._write(folder)
            rollouts = self._buffer.rollouts
        write_rollouts(folder, self._buffer.version, rollouts, runtime_hook.wait)

    def _next_samples(self) -> Rolled:
        return super()._next_samples() if runtime_hook.worst_case else self._buffer.take(runtime_hook.iteration).rolled

    def _trained(self, rolled: Rolled) -> None:
        """It has counted already: the next one may have been sampled."""

    def _sample(self, session: Session) -> None:
        """Sample as long as there is something to do; in a thread of its own."""
        set_side(session)
        try:
            while (number := self._buffer.begin()) is not None:
                session.iteration = number
                runtime_hook.renew()
                try:
                    self._roll_out()
                except Paused:
                    self._buffer.drop()
                    continue
                with self._counted:
                    self._count(self._rolled)
                    self._buffer.put(Rollout(number, self._rolled, runtime_hook.reported))
        except BaseException as error:
            self._buffer.fail(error)
