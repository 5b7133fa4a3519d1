"""The training ranks of a built-in job: worker processes that each hold a shard of weights and optimizer state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rollmux_segment import Footprint

from runtime.grpo.engine_slots import parts_of
from runtime.grpo.messages import StagedShard
from runtime.grpo.switching import fullest_node, wait_for_stages
from runtime.jobs.spec import TaskJob
from runtime.phases import WorkerHandle, close_together, runtime_hook
from runtime.sync.wire import Transfer

_TRAINING = "runtime.grpo.training_worker:TrainingWorker"
_POLLS_S = 0.01, 0.5  # between looks at ranks that write a checkpoint: first, and at most


class TrainingRanks:
    """One worker for each GPU of the training nodes, or for each node without GPUs.

    Args:
        spec: Specification of the job.
    """

    def __init__(self, spec: TaskJob) -> None:
        self._spec = spec
        self._workers: list[WorkerHandle] = []
        self._restores_profiled = False  # the next load discards what the ranks have learned in a profile

    def load(self, checkpoint: Path | None) -> None:
        """Bring the state of all ranks to their devices; the first time, start them.

        Args:
            checkpoint: Folder that a first start reads, or None for the weights of the model.
        """
        if not self._workers:
            self._start(checkpoint)
        discards, self._restores_profiled = self._restores_profiled, False
        wait_for_stages([worker.call("restore", runtime_hook.worst_case, discards) for worker in self._workers])

    def offload_or_stay(self, method: Literal["offload", "stay"]) -> Footprint:
        """Move the state of all ranks to host memory, or leave it; return what the fullest node keeps."""
        footprints = wait_for_stages([worker.call(method) for worker in self._workers])
        return fullest_node(footprints, [1] * len(footprints), 1, len(runtime_hook.nodes("training")))

    def update(self, samples: Sequence[Any]) -> dict[str, float]:
        """Take one GRPO step on samples of rollout workers; return the metrics of the first rank."""
        metrics: list[dict[str, float]] = runtime_hook.wait([worker.call("update", *samples) for worker in self._workers])
        return metrics[0]

    def keep_weights(self) -> list[StagedShard]:
        """Copy the new weights to host memory, each rank its ranges, for a sync."""
        flat = self._spec.sync.topology == "flat"
        weights: list[StagedShard] = runtime_hook.wait([worker.call("keep_weights", flat) for worker in self._workers])
        return weights

    def send(self, transfer: Transfer) -> list[Any]:
        """Begin to send the kept weights; return the pending calls, each of which gives the bytes that a rank has sent."""
        return [worker.call("send", transfer) for worker in self._workers]

    @property
    def workers(self) -> Sequence[WorkerHandle]:
        """Handles of the workers, by rank."""
        return self._workers

    def discard_profile(self) -> None:
        """Let the next load discard what has been trained since the last one."""
        self._restores_profiled = True

    def begin_checkpoint(self, folder: Path) -> Callable[[], dict[str, tuple[int, str]]]:
        """Begin to write a checkpoint from host memory, each rank its own shard.

        Returns:
            A function that waits for all ranks, in any thread, and returns (bytes, digest) by file name.
        """
        workers = self._workers
        runtime_hook.wait([worker.call("begin_writing", str(folder)) for worker in workers])

        def finish() -> dict[str, tuple[int, str]]:
            pause_s, most_s = _POLLS_S
            while None in (parts := runtime_hook.wait([worker.call("written") for worker in workers])):
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, most_s)
            return {name: entry for part in parts for name, entry in part.items()}

        return finish

    def close(self) -> None:
        """End the workers."""
        workers, self._workers = self._workers, []
        close_together([worker.close for worker in workers])

    def _start(self, checkpoint: Path | None) -> None:
        parts = [part for node in runtime_hook.nodes("training") for part in parts_of(node, 1)]
        with runtime_hook.stage("process"):
            self._workers = [
                runtime_hook.start_worker(part, _TRAINING, self._spec, k, len(parts), part) for k, part in enumerate(parts)
            ]
            runtime_hook.wait([worker.call("ready") for worker in self._workers])
        rendezvous = runtime_hook.wait(self._workers[0].call("rendezvous"))
        source = str(checkpoint) if checkpoint else None
        wait_for_stages([worker.call("open", rendezvous, source) for worker in self._workers])
