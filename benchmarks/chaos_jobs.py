"""Small jobs of chaos.py. They count their iterations, keep the count in their checkpoints, and report it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import rollmux
from runtime.phases import WorkerHandle


class Counter:
    """Job that counts in its own process.

    Args:
        phase_s: Duration of a phase, in seconds.
    """

    def __init__(self, phase_s: float) -> None:
        self.phase_s = phase_s
        self.count = 0

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        """Work for the duration of a phase."""
        self.work("rollout")

    @rollmux.phase("train")
    def train(self) -> None:
        """Work for the duration of a phase, and count the iteration."""
        self.work("train")
        self.count += 1
        rollmux.runtime_hook.report(count=float(self.count))

    def work(self, phase: str) -> None:
        """Sleep in this process."""
        time.sleep(self.phase_s)

    def checkpoint(self, folder: Path) -> None:
        """Write the count."""
        (folder / "count.json").write_text(json.dumps(self.count))

    def restore(self, folder: Path) -> None:
        """Continue from a written count."""
        self.count = json.loads((folder / "count.json").read_text())


class Crew(Counter):
    """Job that lets a process on each of its nodes do the work."""

    def __init__(self, phase_s: float) -> None:
        super().__init__(phase_s)
        self.workers: dict[str, list[WorkerHandle]] = {}

    def load(self, phase: str) -> None:
        """Start the processes of a phase when it is loaded for the first time."""
        if phase not in self.workers:
            nodes = rollmux.runtime_hook.nodes("rollout" if phase == "rollout" else "training")
            self.workers[phase] = [rollmux.runtime_hook.start_worker(node, "chaos_jobs:CrewWorker", self.phase_s) for node in nodes]
            rollmux.runtime_hook.wait([worker.call("ready") for worker in self.workers[phase]])

    def work(self, phase: str) -> None:
        """Let all processes of a phase sleep."""
        rollmux.runtime_hook.wait([worker.call("work") for worker in self.workers[phase]])


class CrewWorker:
    """Object of a worker process."""

    def __init__(self, phase_s: float) -> None:
        self.phase_s = phase_s

    def ready(self) -> None:
        """Return, which shows that the process is running."""

    def work(self) -> None:
        """Sleep."""
        time.sleep(self.phase_s)
