"""When a job's checkpoints are written, with as little waiting as possible.

The state is taken between two iterations and written in a thread while the job continues. One checkpoint is written at a time. A
job whose next checkpoint is due before that waits for it, so that a kill never costs more than the iterations of two intervals. The
job also waits for a checkpoint of its present state before it leaves its place, when it stops, and after its last iteration.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np

from rollmux_env.validation_errors import one_line
from runtime.checkpoints import Rest, begin_checkpoint, check_own_name, drop, place_of
from runtime.jobs.spec import RayJob
from runtime.jobside.job_log import note
from runtime.jobside.job_session import JobSession
from runtime.jobside.messages import Checkpoint

SHARE = 1 / 20  # mean share of an iteration's time that checkpoints may take
_LAST = 16  # last iterations, whose median counts: the first one is longer, and some wait
_FULL = (errno.ENOSPC, errno.EDQUOT)
RANDOM = "random.json"


def usual_interval(write_s: float, iteration_s: float) -> int:
    """Return the smallest interval, in iterations, at which writing a checkpoint takes at most a twentieth of the time.

    Args:
        write_s: Seconds to write a checkpoint.
        iteration_s: Seconds of an iteration, above 0.
    """
    return max(1, ceil(write_s / (SHARE * iteration_s)))


class CheckpointWriter:
    """Writer of the checkpoints of a job.

    Args:
        spec: The job.
        session: Session of the job's process.
    """

    def __init__(self, spec: RayJob, session: JobSession) -> None:
        self._spec, self._session = spec, session
        self._folder = Path()
        self._done = self._taken = 0  # completed iterations of the job, and of the last checkpoint
        self._random: dict[str, Any] = {}  # states of random generators after the last iteration
        self._times: deque[float] = deque(maxlen=_LAST)  # seconds of the last iterations
        self._write_s = 0.0
        self._thread: Thread | None = None
        self._error: Exception | None = None  # error of the thread

    def begin(self, folder: Path, iterations: int) -> None:
        """Begin with a job that was just made or restored.

        Args:
            folder: Folder of its checkpoints.
            iterations: Number of completed iterations.
        """
        self._folder, self._done, self._taken = folder, iterations, iterations
        self._times.clear()

    def iterated(self, seconds: float) -> None:
        """Count a completed iteration that took `seconds`."""
        self._done += 1
        self._random = random_states()
        self._times.append(seconds)

    def write_if_due(self, job: Any) -> None:
        """Take a checkpoint between two iterations if one is due, and write it in a thread.

        Args:
            job: Instance of the job's class.

        Raises:
            Exception: If the job's own method fails, now or in the thread.
            Stopped: If there is no room on the disk and the run stops.
        """
        is_behind = self._done > self._taken >= 0 and self._done - self._taken >= self._interval
        if not is_behind and self._error is None:
            return
        self.wait()
        if self._error is not None:
            self.write_now(job)
            return
        began = monotonic()
        try:
            finish = self._take(job)
        except Exception as error:
            self._error = error
            self.write_now(job)
            return
        self._thread = Thread(target=self._finish_beside, args=(finish, self._done, began), daemon=True)
        self._thread.start()

    def write_now(self, job: Any) -> None:
        """Write as `write` does, and wait until the checkpoint is in the journal."""
        if (checkpoint := self.write(job)) is not None:
            self._report(checkpoint)

    def write(self, job: Any) -> Checkpoint | None:
        """Write the job's present state after the checkpoint in progress. If the disk is full, the job waits for room.

        Args:
            job: Instance of the job's class.

        Returns:
            The checkpoint, or None if the last one has the present state already.

        Raises:
            Exception: As in `write_if_due`.
            Stopped: As in `write_if_due`.
        """
        self.wait()
        error, self._error = self._error, None
        paused = False
        while error is not None or self._done > self._taken:
            self._session.where = "checkpoint"
            if error is not None:
                if not _is_full(error):
                    raise error
                problem = one_line(" ".join(str(error).split()), 500)
                note(f"its checkpoint cannot be written, and is tried again when there is room: {problem}")
                if hasattr(job, "pause"):
                    job.pause()
                    paused = True
                self._session.leave_devices()
                self._session.ask("full", problem)
            began = monotonic()
            try:
                checkpoint = self._finish(self._take(job), self._done, began)
            except Exception as again:
                error = again
                continue
            self._session.where = ""
            if paused:
                self._session.ask("continued", job.sampled_ahead)
            return checkpoint
        return None

    def wait(self, most_s: float | None = None) -> None:
        """Wait for the checkpoint in progress.

        Args:
            most_s: Longest wait in seconds, after which the job ends without it, or None for no limit.
        """
        if self._thread is not None:
            self._thread.join(most_s)
            self._thread = None

    def drop(self) -> None:
        """Remove old checkpoints, once the last one is in the journal."""
        drop(self._folder, self._spec.checkpoint.keep)

    @property
    def _interval(self) -> int:
        every = self._spec.checkpoint.every
        return every if isinstance(every, int) else usual_interval(self._write_s, max(median(self._times), 1e-9))

    def _take(self, job: Any) -> Callable[[], int]:
        """Let the job write its state, and return the function that finishes the checkpoint."""
        states = self._random

        def fill(folder: Path) -> Rest:
            rest: Rest | None = job.checkpoint(folder)

            def finish() -> Mapping[str, tuple[int, str]] | None:
                written = rest() if rest is not None else None
                keep_randomness(folder, states)
                return written

            return finish

        where, self._session.where = self._session.where, "checkpoint"
        finish = begin_checkpoint(self._folder, self._done, fill)
        self._session.where, self._taken = where, self._done
        return finish

    def _finish(self, finish: Callable[[], int], iterations: int, began: float) -> Checkpoint:
        try:
            size = finish()
        except BaseException:
            self._taken = -1  # no checkpoint of the present state is on disk
            raise
        self._write_s = monotonic() - began
        return Checkpoint(iterations, str(place_of(self._folder, iterations)), self._write_s, size / 1e9)

    def _finish_beside(self, finish: Callable[[], int], iterations: int, began: float) -> None:
        try:
            self._report(self._finish(finish, iterations, began))
        except Exception as error:
            self._error = error

    def _report(self, checkpoint: Checkpoint) -> None:
        if self._session.ask("checkpointed", checkpoint):
            self.drop()


def _is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk was full."""
    return getattr(error, "errno", None) in _FULL or any(os.strerror(number) in str(error) for number in _FULL)


def random_states() -> dict[str, Any]:
    """Return the states of the global random generators as a JSON value."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the state of the global generator is needed)
    states: dict[str, Any] = {"python": [version, words, gauss], "numpy": [kind, [int(key) for key in keys], *rest]}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist()).hex()
    return states


def keep_randomness(folder: Path, states: dict[str, Any]) -> None:
    """Write the states of random generators into a checkpoint.

    Raises:
        RuntimeError: If the job has written a file of this name.
    """
    check_own_name(folder / RANDOM)
    (folder / RANDOM).write_text(json.dumps(states))


def restore_randomness(folder: Path) -> None:
    """Restore the states of random generators from a checkpoint."""
    states = json.loads((folder / RANDOM).read_bytes())
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    if "torch" in states:
        import torch

        torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
