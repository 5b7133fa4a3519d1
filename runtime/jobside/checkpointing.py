"""When a job's state is written to the disk, and that nothing waits for it but what has to.

The state is taken between two iterations and written in a thread beside what follows. One checkpoint is written at a time: a job
whose next one is due before that has ended waits for it, so that a kill never costs more than the iterations of two intervals. It
waits too before it leaves its place, when it stops, and when it has done its last iteration: for a checkpoint of what it is then.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
from collections import deque
from collections.abc import Callable
from math import ceil
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np

from rollmux_env.validation_errors import one_line
from runtime.checkpoints import Rest, begin_checkpoint, drop, place_of
from runtime.jobs.spec import RayJob
from runtime.jobside.job_log import note
from runtime.jobside.job_session import JobSession
from runtime.jobside.messages import Checkpoint

SHARE = 1 / 20  # of an iteration's time that checkpoints may take in the mean
_LAST = 16  # iterations whose median is the time of one: the first is longer, and some wait
_FULL = (errno.ENOSPC, errno.EDQUOT)
RANDOM = "random.json"


def usual_interval(write_s: float, iteration_s: float) -> int:
    """The fewest iterations from one checkpoint to the next of which writing it takes a twentieth at most.

    Args:
        write_s: seconds of writing one. iteration_s: of an iteration, above 0.
    """
    return max(1, ceil(write_s / (SHARE * iteration_s)))


class CheckpointWriter:
    """Writes the checkpoints of a job that has them.

    Args:
        spec: the job. session: the run, as its process sees it.
    """

    def __init__(self, spec: RayJob, session: JobSession) -> None:
        self._spec, self._session = spec, session
        self._folder = Path()
        self._done = self._taken = 0  # iterations that the job has done, and of the last checkpoint
        self._random: dict[str, Any] = {}  # states after the last iteration
        self._times: deque[float] = deque(maxlen=_LAST)  # seconds
        self._write_s = 0.0
        self._thread: Thread | None = None
        self._error: Exception | None = None  # of what was written in the thread

    def begin(self, folder: Path, iterations: int) -> None:
        """The job is made, as it is after so many iterations; its checkpoints are in a folder."""
        self._folder, self._done, self._taken = folder, iterations, iterations
        self._times.clear()

    def iterated(self, seconds: float) -> None:
        """An iteration is done, and took so long."""
        self._done += 1
        self._random = random_states()
        self._times.append(seconds)

    def write_if_due(self, job: Any) -> None:
        """Between two iterations: take a checkpoint if it is time to, and let it be written.

        Raises:
            Exception: of the job's own method, now or in the thread. Stopped: there is no room on the disk, and the run stops.
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
        """As `write`, and the journal knows it when this returns."""
        if (checkpoint := self.write(job)) is not None:
            self._report(checkpoint)

    def write(self, job: Any) -> Checkpoint | None:
        """Write what the job is now, once what is being written is on the disk; None: that is what it is now.

        Where there is no room, the job waits for it.

        Raises:
            As `write_if_due`.
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

    def wait(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def drop(self) -> None:
        """Remove those that are no longer wanted, when the journal knows the last one."""
        drop(self._folder, self._spec.checkpoint.keep)

    @property
    def _interval(self) -> int:
        every = self._spec.checkpoint.every
        return every if isinstance(every, int) else usual_interval(self._write_s, max(median(self._times), 1e-9))

    def _take(self, job: Any) -> Callable[[], int]:
        """Let the job say what it is; returns what brings that to the disk."""

        def fill(folder: Path) -> Rest | None:
            rest: Rest | None = job.checkpoint(folder)
            keep_randomness(folder, self._random)
            return rest

        where, self._session.where = self._session.where, "checkpoint"
        finish = begin_checkpoint(self._folder, self._done, fill)
        self._session.where, self._taken = where, self._done
        return finish

    def _finish(self, finish: Callable[[], int], iterations: int, began: float) -> Checkpoint:
        try:
            size = finish()
        except BaseException:
            self._taken = -1  # whatever that was, it is not on the disk
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
    """Whether there was no room on a disk, as far as an error tells."""
    return getattr(error, "errno", None) in _FULL or any(os.strerror(number) in str(error) for number in _FULL)


def random_states() -> dict[str, Any]:
    """Their states, as JSON has them."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the global generator is the one that has to be kept)
    states: dict[str, Any] = {"python": [version, words, gauss], "numpy": [kind, [int(key) for key in keys], *rest]}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist()).hex()
    return states


def keep_randomness(folder: Path, states: dict[str, Any]) -> None:
    """Write states."""
    (folder / RANDOM).write_text(json.dumps(states))


def restore_randomness(folder: Path) -> None:
    """Go on from the states that were kept."""
    states = json.loads((folder / RANDOM).read_bytes())
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    if "torch" in states:
        import torch

        torch.set_rng_state(torch.tensor(list(bytes.fromhex(states["torch"])), dtype=torch.uint8))
