"""An engine whose process has ended is told from one that has an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.engines.vllm_engine import dies_with_its_processes
from runtime.phases import WorkerDied


class EngineDeadError(Exception):
    """By its name vLLM's."""


class Engine:
    """Fails as it is told."""

    def __init__(self, failed: bool, *errors: Exception) -> None:
        self.failed, self.errors = failed, errors

    def executor(self) -> Any:
        return SimpleNamespace(is_failed=self.failed)

    @dies_with_its_processes
    def generate(self, word: str) -> str:
        for error in self.errors:
            try:
                raise error
            finally:  # as where requests are aborted after the failure
                if len(self.errors) > 1:
                    raise self.errors[1]
        return word


def test_a_process_that_has_ended_is_a_death_and_not_the_jobs_own_failure() -> None:
    assert Engine(False).generate("word") == "word"
    with pytest.raises(WorkerDied, match=r"^a process of its engine has died: cancelled$"):
        Engine(True, RuntimeError("cancelled")).generate("word")
    for errors in ([EngineDeadError("gone")], [EngineDeadError("gone"), RuntimeError("no request 3")]):
        with pytest.raises(WorkerDied, match="a process of its engine has died"):
            Engine(False, *errors).generate("word")
    with pytest.raises(ValueError, match="too long"):
        Engine(False, ValueError("too long")).generate("word")
