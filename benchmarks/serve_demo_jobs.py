"""The jobs of serve_demo.py: they sleep, count their iterations in their checkpoints, and have a process on each of their nodes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import rollmux
from runtime.phases import WorkerHandle


class Hand:
    """What a process of a job holds."""

    def work(self, seconds: float) -> int:
        """Take so long; the process's id."""
        time.sleep(seconds)
        return os.getpid()


class Counts:
    """Counts its iterations.

    Args:
        seconds: of a phase. breaks_at: number of the iteration in which its code raises.
    """

    def __init__(self, seconds: float = 0.5, breaks_at: int | None = None) -> None:
        self.seconds, self.breaks_at, self.count = seconds, breaks_at, 0
        self.hands: dict[str, WorkerHandle] = {}

    def load(self, phase: str) -> None:
        """Start the process of a phase, once in every place."""
        if phase not in self.hands:
            (node,) = rollmux.runtime_hook.nodes("rollout" if phase == "rollout" else "training")
            self.hands[phase] = rollmux.runtime_hook.start_worker(node, "serve_demo_jobs:Hand")
            rollmux.runtime_hook.wait(self.hands[phase].call("work", 0.0))

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        rollmux.runtime_hook.wait(self.hands["rollout"].call("work", self.seconds))
        if rollmux.runtime_hook.iteration == self.breaks_at:
            raise ValueError("the reward is no number")

    @rollmux.phase("train")
    def train(self) -> None:
        pid = rollmux.runtime_hook.wait(self.hands["train"].call("work", self.seconds))
        self.count += 1
        rollmux.runtime_hook.report(count=self.count, pid=pid)

    def profile(self) -> None:
        """One iteration that is not counted."""
        self.rollout()
        self.train()
        self.count -= 1

    def checkpoint(self, folder: Path) -> None:
        """Keep the count."""
        (folder / "count").write_text(str(self.count))

    def restore(self, folder: Path) -> None:
        """Go on from it."""
        self.count = int((folder / "count").read_text())
