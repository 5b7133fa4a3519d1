"""The built-in job with a staleness: its rollouts go on in a thread of their own while it trains.

Each side asks for its own permits. New weights go to the rollout nodes' host memory beside a rollout, and its engines take them
when the next one begins, or, with `rollout.interruptible`, in the middle of responses. What is sampled waits in a buffer, which is
in the checkpoint with the weights, so that a job that goes on elsewhere trains on what it had.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from threading import RLock, Thread

from runtime.grpo.buffer import Rollout, SampleBuffer
from runtime.grpo.job import Grpo
from runtime.grpo.messages import Rolled
from runtime.grpo.sample_files import read_rollouts, write_rollouts
from runtime.jobs.spec import JobSpec
from runtime.phases import Paused, Session, runtime_hook, set_side

_ENDS_S = 10.0  # in which a rollout whose engines have gone comes to its end


class AsynchronousGrpo(Grpo):
    """One GRPO job, see `Grpo`.

    Args:
        spec: of the job file, with a staleness.
    """

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec)
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
        runtime_hook.samples.extend(reported.samples)
        runtime_hook.trajectories.extend(reported.trajectories)
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

    def _due(self) -> Rolled:
        return super()._due() if runtime_hook.worst_case else self._buffer.take(runtime_hook.iteration).rolled

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
