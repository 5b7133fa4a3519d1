"""A task that goes wrong."""

from __future__ import annotations

from runtime.jobs.tasks import Example


class Poison:
    def __init__(self, seed: int, kind: str) -> None:
        self.kind = kind

    def prompts(self, count: int, position: int) -> list[Example]:
        return [Example("1", "1")] * (1 if self.kind == "short" else count)

    def reward(self, example: Example, response: str) -> float:
        if self.kind == "raises":
            raise ValueError("no verifier")
        return float("nan")
