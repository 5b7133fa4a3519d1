"""Jobs of serve_demo.py. They sleep, count their iterations in their checkpoints, and have a process on each of their nodes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import rollmux
from runtime.phases import WorkerHandle


class CountingWorker:
    """Object of a job's worker process."""

    def work(self, seconds: float) -> int:
        """Sleep, and return the id of this process."""
        time.sleep(seconds)
        return os.getpid()


class CountingJob:
    """Job that counts its iterations.

    Args:
        seconds: Duration of a phase, in seconds.
        breaks_at: Number of the iteration in which the job raises an error, None means never.
    """

    def __init__(self, seconds: float = 0.5, breaks_at: int | None = None) -> None:
        self.seconds, self.breaks_at, self.count = seconds, breaks_at, 0
        self.workers: dict[str, WorkerHandle] = {}

    def load(self, phase: str) -> None:
        """Start the process of a phase when it is loaded for the first time."""
        if phase not in self.workers:
            (node,) = rollmux.runtime_hook.nodes("rollout" if phase == "rollout" else "training")
            self.workers[phase] = rollmux.runtime_hook.start_worker(node, "serve_demo_jobs:CountingWorker")
            rollmux.runtime_hook.wait(self.workers[phase].call("work", 0.0))

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        """Sleep in the rollout process, and raise an error in the chosen iteration."""
        rollmux.runtime_hook.wait(self.workers["rollout"].call("work", self.seconds))
        if rollmux.runtime_hook.iteration == self.breaks_at:
            raise ValueError("the reward is no number")

    @rollmux.phase("train")
    def train(self) -> None:
        """Sleep in the training process, and count the iteration."""
        pid = rollmux.runtime_hook.wait(self.workers["train"].call("work", self.seconds))
        self.count += 1
        rollmux.runtime_hook.report(count=self.count, pid=pid)

    def profile(self) -> None:
        """Run one iteration without counting it."""
        self.rollout()
        self.train()
        self.count -= 1

    def checkpoint(self, folder: Path) -> None:
        """Write the count."""
        (folder / "count").write_text(str(self.count))

    def restore(self, folder: Path) -> None:
        """Continue from a written count."""
        self.count = int((folder / "count").read_text())
