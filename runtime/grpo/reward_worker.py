"""Reward workers: a job's rewards in processes apart from its engines, which hand each response over as it ends."""

from __future__ import annotations

from runtime.grpo.reward_runner import RewardProcess
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import Example
from runtime.phases import WorkerHandle, runtime_hook


class RewardWorker:
    """Computes rewards for all engines of a job, one after the other, in the order in which they come.

    Args:
        spec: of the job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._process = RewardProcess(spec)

    def wait_until_ready(self) -> None:
        """See `RewardRunner`."""
        self._process.wait_until_ready()

    def score(self, example: Example, response: str, limit_s: float | None) -> tuple[float, float] | None:
        """See `RewardRunner`; the limit counts from when this one's turn has come."""
        return self._process.score(example, response, limit_s)

    def prompts(self, count: int, position: int) -> list[Example]:
        """See `RewardRunner`."""
        return self._process.prompts(count, position)

    def close(self) -> None:
        """Stop what still runs."""
        self._process.close()


class DistantRunner:
    """A reward worker as an engine has it (see `RewardRunner`); it ends with the job.

    Args:
        worker: that holds a `RewardWorker`.
    """

    def __init__(self, worker: WorkerHandle) -> None:
        self._worker = worker

    def score(self, example: Example, response: str, limit_s: float | None) -> tuple[float, float] | None:
        """See `RewardRunner`. Raises WorkerDied too: the reward worker has."""
        outcome: tuple[float, float] | None = runtime_hook.wait(self._worker.beside("score", example, response, limit_s))
        return outcome

    def prompts(self, count: int, position: int) -> list[Example]:
        """See `RewardRunner`."""
        examples: list[Example] = runtime_hook.wait(self._worker.beside("prompts", count, position))
        return examples

    def wait_until_ready(self) -> None:
        """See `RewardRunner`."""
        runtime_hook.wait(self._worker.beside("wait_until_ready"))

    def close(self) -> None:
        """Nothing: other engines have it too."""
