"""Tasks that go wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from runtime.jobs.tasks import Example


class Poison:
    def __init__(self, seed: int) -> None:
        pass

    def prompts(self, count: int, position: int) -> list[Example]:
        return [Example("1", "1")] * count

    def reward(self, example: Example, response: str) -> float:
        raise ValueError("no verifier")


class Trap(Poison):
    """Every response is correct, but one of them is never done with: the one after `after` others, whoever scores them."""

    def __init__(self, seed: int, folder: str, after: int = 0) -> None:
        super().__init__(seed)
        self.folder, self.after = Path(folder), after

    def reward(self, example: Example, response: str) -> float:
        with (self.folder / "calls").open("a+") as file:
            file.write("x")
        calls = (self.folder / "calls").stat().st_size
        if response == "exit":
            os._exit(3)
        if response == "bad":
            raise ValueError("no verifier")
        if response == "slow" or calls == self.after + 1:
            child = subprocess.Popen(["sleep", "600"])
            (self.folder / "child").write_text(str(child.pid))
            child.wait()
        return 1.0
