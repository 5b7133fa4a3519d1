"""Tasks that go wrong, and some that wait."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from runtime.jobs.tasks import Echo, LongTail, TaskExample


class Waits(Echo):
    """Gives no examples from a position on before there is a file."""

    def __init__(self, seed: int, position: int, file: str) -> None:
        super().__init__(seed)
        self.position, self.file = position, Path(file)

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        while position >= self.position and not self.file.exists():
            time.sleep(0.01)
        return super().prompts(count, position)


class WaitsForOther(LongTail):
    """Tells of every rollout that it has begun, and gives no examples to those behind the first before another job has asked for
    its own one of the same number.

    Args:
        folder: where they say so to each other. prompts: of a rollout.
    """

    def __init__(self, seed: int, folder: str, prompts: int) -> None:
        super().__init__(seed)
        self.folder, self.each = Path(folder), prompts

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        number = position // self.each
        (self.folder / f"began-{number}").touch()
        while number and not (self.folder / f"asks-{number}").exists():
            time.sleep(0.01)
        return super().prompts(count, position)


class Poison:
    def __init__(self, seed: int) -> None:
        pass

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        return [TaskExample("1", "1")] * count

    def reward(self, example: TaskExample, response: str) -> float:
        raise ValueError("no verifier")


class Trap(Poison):
    """Every response is correct, but one of them is never done with: the one after `after` others, whoever scores them."""

    def __init__(self, seed: int, folder: str, after: int = 0) -> None:
        super().__init__(seed)
        self.folder, self.after = Path(folder), after

    def reward(self, example: TaskExample, response: str) -> float:
        with (self.folder / "calls").open("a+") as file:
            file.write("x")
        calls = (self.folder / "calls").stat().st_size
        if response == "exit":
            os._exit(3)
        if response == "bad":
            raise ValueError("no verifier")
        if response == "slow" or calls == self.after + 1:
            child = subprocess.Popen(["sleep", "600"])
            (self.folder / "pid").write_text(str(child.pid))
            (self.folder / "pid").rename(self.folder / "child")
            child.wait()
        return 1.0


class Slow(Echo):
    """Rewards that go by the response alone. From the one after `after` others on they make the file `waits` and wait for `go`; the
    one after `kill_after` others ends the process that has asked for it."""

    def __init__(self, seed: int, folder: str, after: int = -1, kill_after: int = -1) -> None:
        super().__init__(seed)
        self.folder, self.after, self.kill_after = Path(folder), after, kill_after

    def reward(self, example: TaskExample, response: str) -> float:
        with (self.folder / "calls").open("a+") as file:
            file.write("x")
        calls = (self.folder / "calls").stat().st_size
        if calls == self.kill_after + 1:
            os.kill(os.getppid(), signal.SIGKILL)
        if 0 <= self.after < calls:
            (self.folder / "waits").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)
        return sum(map(ord, response)) % 7 / 6
