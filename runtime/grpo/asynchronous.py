"""The built-in job with a staleness: its rollouts run in a separate thread while it trains.

The two sides ask for their permits separately. New weights go to the rollout nodes' host memory while a rollout runs. The engines
take them when the next rollout begins, or, with `rollout.interruptible`, in the middle of responses. Samples wait in a buffer. A
checkpoint contains the buffer together with the weights, so that a job that continues elsewhere trains on the same samples.

S1  no sample is older than the job's staleness when it is trained: 0 <= trained version - sampled version <= staleness, by token

Version v of the weights is the one after v trainings. Rollout k, on which training k is done, begins only when the engines have
weights of version k - staleness or newer. Before training k there are no weights newer than version k. This also limits the buffer
to staleness + 1 rollouts. (AReaL, arXiv 2505.24298, section 5.1, counts the same in trajectories: floor((N - 1) / B) <= version +
staleness, with N trajectories begun and batches of B.) Training asserts S1 for every token before using it (`check_versions` in
`runtime.grpo.training_worker`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Condition, RLock, Thread

from runtime.grpo.job import Grpo
from runtime.grpo.messages import RolloutSamples, SampledRollout
from runtime.grpo.state import read_rollouts, write_rollouts
from runtime.jobs.spec import TaskJob
from runtime.phases import Paused, Session, runtime_hook, set_side

_ENDS_S = 10.0  # time in which a rollout ends after its engines are gone, in seconds


class SampleBuffer:
    """Buffer between the thread that samples and the one that trains. Both wait in it.

    Args:
        staleness: Staleness of the job, in versions of the weights.
        iterations: Number of iterations of the job.
        version: Current version of the weights.
        rollouts: Rollouts that are in the buffer from the beginning, the oldest first.

    Raises:
        ValueError: These rollouts are not the next ones to train on, or more than the staleness allows.
    """

    def __init__(self, staleness: int, iterations: int, version: int = 0, rollouts: Iterable[SampledRollout] = ()) -> None:
        self._staleness, self._iterations = staleness, iterations
        self._landed = self._trained = version  # version that the engines have, and version of the trained weights
        self._rollouts = [*rollouts]
        numbers = [rollout.number for rollout in self._rollouts]
        if numbers != [*range(version, version + len(numbers))] or len(numbers) > staleness + 1:
            raise ValueError(f"rollouts {numbers} do not follow {version} trainings with a staleness of {staleness}")
        self._condition = Condition()
        self._samples = self._pauses = self._closed = False
        self._error: BaseException | None = None

    @property
    def version(self) -> int:
        """Number of finished trainings, which is the version of the weights."""
        return self._trained

    @property
    def rollouts(self) -> Sequence[SampledRollout]:
        """Rollouts that wait for their training, the oldest first."""
        with self._condition:
            return [*self._rollouts]

    def begin(self) -> int | None:
        """Wait until the next rollout may begin.

        Returns:
            Number of the rollout. None means that there is no further one.
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

    def put(self, rollout: SampledRollout) -> None:
        """Append the rollout that `begin` allowed."""
        with self._condition:
            self._rollouts.append(rollout)
            self._samples = False
            self._condition.notify_all()

    def drop(self) -> None:
        """Give up the rollout that `begin` allowed. It begins again later."""
        with self._condition:
            self._samples = False
            self._condition.notify_all()

    def take(self, number: int) -> SampledRollout:
        """Wait for the oldest rollout. It stays in the buffer until `trained` is called.

        Args:
            number: Number that the rollout must have.

        Raises:
            RuntimeError: The oldest rollout has another number.
            BaseException: The error that ended the sampling.
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
        """Remove the oldest rollout, which has been trained on."""
        with self._condition:
            del self._rollouts[0]
            self._trained += 1

    def landed(self) -> None:
        """Record that the engines have the weights of the last training."""
        with self._condition:
            self._landed = self._trained
            self._condition.notify_all()

    def pause(self) -> None:
        """Let no further rollout begin."""
        with self._condition:
            self._pauses = True

    def wait_until_idle(self) -> None:
        """Wait until no rollout is under way."""
        with self._condition:
            while self._samples and self._error is None:
                self._condition.wait()

    def resume(self) -> bool:
        """Let rollouts begin again, and return whether they were paused."""
        with self._condition:
            paused, self._pauses = self._pauses, False
            self._condition.notify_all()
            return paused

    def fail(self, error: BaseException) -> None:
        """Record an error that ended the sampling. `take` raises it once the buffer is empty."""
        with self._condition:
            self._error, self._samples = error, False
            self._condition.notify_all()

    def close(self) -> None:
        """Let `begin` return None from now on."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class AsynchronousGrpo(Grpo):
    """A GRPO job with a staleness (see `Grpo`).

    Args:
        spec: Specification from the job file, with a staleness above 0.
    """

    def __init__(self, spec: TaskJob) -> None:
        super().__init__(spec, concurrent=True)
        self._buffer = SampleBuffer(spec.staleness, spec.iterations)
        self._sampler: Thread | None = None
        self._counted = RLock()  # keeps the buffer and the position in the data consistent

    @property
    def sampled_ahead(self) -> int:
        """Number of rollouts that wait for their training."""
        return len(self._buffer.rollouts)

    def step(self) -> None:
        """Run one iteration: a training on the oldest rollout, and a sync of the weights."""
        if self._buffer.resume():
            runtime_hook.pause(False)
        if self._sampler is None:
            self._sampler = Thread(target=self._sample, args=(runtime_hook.second_session(),), name="rollouts", daemon=True)
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
        """Let no rollout be under way until the next step. A rollout that has its permit ends first."""
        self._buffer.pause()
        runtime_hook.pause(True)
        self._buffer.wait_until_idle()

    def close(self) -> None:
        """Stop the workers, and thereby a rollout that is under way."""
        sampler, self._sampler = self._sampler, None
        self._buffer.close()
        # A thread that waits for a permit is woken by the pause. Errors are ignored because the run may be over.
        with contextlib.suppress(Exception):
            runtime_hook.pause(sampler is not None)
        super().close()
        if sampler is not None:
            sampler.join(_ENDS_S)
            with contextlib.suppress(Exception):
                runtime_hook.pause(False)  # for the job that takes this one's place

    def restore(self, folder: Path) -> None:
        """Continue from a checkpoint, with its samples, as soon as workers are started."""
        super().restore(folder)
        version, rollouts = read_rollouts(folder)
        self._buffer = SampleBuffer(self._spec.staleness, self._spec.iterations, version, rollouts)

    def _write(self, folder: Path) -> None:
        with self._counted:
            super()._write(folder)
            rollouts = self._buffer.rollouts
        write_rollouts(folder, self._buffer.version, rollouts, runtime_hook.wait)

    def _next_samples(self) -> RolloutSamples:
        return super()._next_samples() if runtime_hook.worst_case else self._buffer.take(runtime_hook.iteration).rolled

    def _trained(self, rolled: RolloutSamples) -> None:
        """Do nothing: the rollout was counted when it was sampled, since the next one may have begun since."""

    def _sample(self, session: Session) -> None:
        """Sample until the buffer is closed or the job has no further rollouts. Runs in a separate thread."""
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
                    self._buffer.put(SampledRollout(number, self._rolled, runtime_hook.reported))
        except BaseException as error:
            self._buffer.fail(error)
