"""Training worker of the built-in job: one rank of training."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rollmux_segment import Footprint

from runtime.gpus import CudaOverhead
from runtime.grpo.messages import ShareSamples, StagedShard, Timed, stage, timed
from runtime.grpo.state import read_state, write_shards
from runtime.jobs.spec import TaskJob
from runtime.machine import Node, threads_of

if TYPE_CHECKING:
    from rollmux_segment import Segment

    from runtime.sync.wire import Transfer


class TrainingWorker:
    """One rank of training.

    Args:
        spec: Specification of the job.
        rank: Number of the rank.
        world: Number of ranks.
        node: Part of a node that belongs to this rank.
    """

    def __init__(self, spec: TaskJob, rank: int, world: int, node: Node) -> None:
        self._spec, self._rank, self._world, self._node = spec, rank, world, node
        self._before: Any = None  # moments and counts before a profile, which leaves the weights unchanged
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[dict[str, tuple[int, str]]] | None = None
        self._pending_weights: Any = None  # version and number of bytes of the weights to send
        self._buffer: Segment | None = None  # bytes of these weights, in memory that is kept for the next iteration

    def ready(self) -> bool:
        """Return True, which shows that the process is running."""
        return True

    def rendezvous(self) -> str | None:
        """Open the store at which the ranks meet, and return its URL. Called on rank 0; None if it is the only rank."""
        if self._world == 1:
            return None
        import ray

        from runtime.training.group import open_store, url_of

        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._store = open_store(host)
        return url_of(host, self._store.port)

    def open(self, rendezvous: str | None, checkpoint: str | None) -> Timed:
        """Load model and optimizer.

        Args:
            rendezvous: URL at which the ranks meet, None for a single rank.
            checkpoint: Folder of a checkpoint whose state is loaded, or None.
        """
        stages: dict[str, float] = {}
        self._own = CudaOverhead(len(self._node.gpus))
        with stage(stages, "import"):
            from runtime.jobs.models import model_directory
            from runtime.training.trainer import Trainer
        with stage(stages, "model"):
            directory = model_directory(self._spec.model, self._spec.seed, Path(self._spec.folder))
            self._trainer = Trainer(
                directory,
                self._spec.settings,
                rank=self._rank,
                world=self._world,
                rendezvous=rendezvous,
                threads=threads_of(self._node.cores),
                steps=self._spec.iterations * self._spec.algorithm.minibatches,
                cpu_offload=self._spec.training.cpu_offload,
            )
        if checkpoint is not None:
            with stage(stages, "checkpoint"):
                self._trainer.load_state(*read_state(Path(checkpoint)))
        return Footprint(), stages

    def restore(self, keep: bool, back: bool) -> Timed:
        """Bring the state to the device.

        Args:
            keep: Whether a profile follows, which must leave the state unchanged.
            back: Whether to return to the state before the last profile.
        """
        restored = timed("restore", self._trainer.restore)
        if back:
            self._trainer.load_shards(*self._before)
        if not keep:
            self._before = None
        elif self._before is None:
            with self._trainer.shards(weights=False) as (moments, info):  # no copy of weights: nothing later has room for it
                self._before = dict(moments), info
        return restored

    def offload(self) -> Timed:
        """Take the state off the device."""
        footprint, seconds = timed("offload", self._trainer.offload)
        return self._whole(footprint), seconds

    def stay(self) -> Timed:
        """Leave the state on the device until the next training."""
        footprint, seconds = timed("stay", self._trainer.stay)
        return self._whole(footprint), seconds

    def _whole(self, footprint: Footprint) -> Footprint:
        """Return the footprint of the whole process, given the footprint of the trainer."""
        footprint = self._own.added(footprint)
        return footprint if self._buffer is None else footprint + self._buffer.footprint()

    def update(self, *parts: Sequence[ShareSamples]) -> dict[str, float]:
        """Train on the responses of an iteration.

        Args:
            parts: Sampled shares of each engine.

        Returns:
            Metrics of the training, by name.

        Raises:
            RuntimeError: A token was sampled by weights older than the job's staleness allows (S1 of `runtime.grpo.asynchronous`).
            TrainingError: A reward, log-prob, advantage or gradient is not finite.
        """
        from runtime.training.batch import make_batch

        ordered = sorted(chain.from_iterable(parts), key=lambda part: part.place)
        prompts = [prompt for part in ordered for prompt in part.prompts]
        responses = [response for part in ordered for response in part.responses]
        rewards = [reward for part in ordered for reward in part.rewards]
        version = self._trainer.updates
        versions = np.concatenate([np.array(response.versions, np.int64) for response in responses])
        check_versions(version, versions, self._spec.staleness)
        batch = make_batch(prompts, responses, rewards, self._spec.algorithm.group_size)
        metrics = self._trainer.update(batch, learn=self._before is None)
        metrics |= {"sampled_version": float(versions.min()), "trained_version": float(version)}
        return metrics | ({"staleness": version - float(versions.mean())} if self._spec.staleness else {})

    def keep_weights(self, whole: bool) -> StagedShard:
        """Copy the new weights to host memory, to send them while another job has the device. All ranks must call it.

        Args:
            whole: Whether rank 0 keeps all weights and the others none. Otherwise each rank keeps its shard.
        """
        from rollmux_segment import Segment

        from runtime.sync.plan import length, shard

        trainer, layout = self._trainer, self._trainer.layout
        everything = ((0, layout.nbytes),) if self._rank == 0 else ()
        ranges = everything if whole else shard(layout, self._rank, self._world)
        nbytes = length(ranges)
        if self._buffer is None:
            self._buffer = Segment(max(nbytes, 1), pinned=bool(self._node.gpus))
        write = trainer.write_weights if whole else trainer.write_shard
        write(self._buffer.bytes[:nbytes])
        self._pending_weights = trainer.updates, nbytes
        return StagedShard(trainer.updates, layout, ranges)

    def send(self, transfer: Transfer) -> int:
        """Send the kept weights to the rollout workers, which must receive them at the same time.

        Returns:
            Number of bytes sent over connections.

        Raises:
            RuntimeError: Other weights were kept, or a stream broke. The message is one line.
        """
        from runtime.residency.layout import WeightMemory
        from runtime.sync.streams import send_streams

        assert self._buffer is not None
        (version, nbytes), self._pending_weights = self._pending_weights, None
        return send_streams(self._rank, transfer, version, self._buffer.bytes[:nbytes], WeightMemory(self._buffer.file))

    def begin_writing(self, folder: str) -> None:
        """Begin to write this rank's part of a checkpoint in a thread, with the state as it is now.

        The state is read from the host memory in which it waits. It stays there until it is written, whatever is trained meanwhile.
        """
        if self._writing is not None:
            wait([self._writing])  # if another rank could not begin, the job has not waited for it
        self._trainer.offload()  # the state may be on the device, where reading it would need a copy
        reading = ExitStack()
        shards, info = reading.enter_context(self._trainer.shards())

        def write() -> dict[str, tuple[int, str]]:
            with reading:
                return write_shards(Path(folder), self._rank, shards, info)

        self._writing = self._writer.submit(write)

    def written(self) -> dict[str, tuple[int, str]] | None:
        """Return the size in bytes and SHA-256 of each file, by name, once they are written, and None before.

        Raises:
            OSError: The disk is full, or the folder no longer exists.
        """
        return self._writing.result() if self._writing is not None and self._writing.done() else None

    def close(self) -> None:
        """Release everything."""
        if hasattr(self, "_trainer"):
            self._trainer.close()
        if self._buffer is not None:
            self._buffer.close()


def check_versions(trained: int, versions: NDArray[np.int64], staleness: int) -> None:
    """Assert S1: no token is older than the staleness allows.

    Args:
        trained: Version of the weights that are about to be trained.
        versions: Version of the weights that sampled each token, of shape (tokens,).
        staleness: Staleness of the job, in versions.

    Raises:
        RuntimeError: A token is too old, or newer than the weights. The message is one line.
    """
    if len(versions) and not trained - staleness <= versions.min() <= versions.max() <= trained:
        span = f"{versions.min()} to {versions.max()}" if versions.min() < versions.max() else f"{versions.min()}"
        problem = f"S1: responses were sampled with version {span} of the weights, trained is version {trained}"
        raise RuntimeError(f"{problem} with a staleness of {staleness}")
