"""The training worker of the built-in job: a rank that trains."""

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

from runtime.gpus import OwnOfCuda
from runtime.grpo.messages import Kept, Sampled, Timed, stage, timed
from runtime.grpo.state import read_state, write_shards
from runtime.jobs.spec import JobSpec
from runtime.machine import Node, threads_of

if TYPE_CHECKING:
    from rollmux_segment import Segment

    from runtime.sync.wire import Transfer


class TrainingWorker:
    """One rank of training.

    Args:
        spec: of the job. rank, world: which rank it is, and how many there are. node: its own.
    """

    def __init__(self, spec: JobSpec, rank: int, world: int, node: Node) -> None:
        self._spec, self._rank, self._world, self._node = spec, rank, world, node
        self._before: Any = None  # moments and counts before a profile, which leaves weights as they are
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[dict[str, tuple[int, str]]] | None = None
        self._pending_weights: Any = None  # version, and number of bytes, of weights that are to be sent
        self._buffer: Segment | None = None  # their bytes, in memory that is kept for those of the next iteration

    def ready(self) -> bool:
        """The process is there."""
        return True

    def meeting(self) -> str | None:
        """Where the ranks meet: at rank 0; nowhere where it is alone."""
        if self._world == 1:
            return None
        import ray

        from runtime.training.group import open_store, url_of

        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._meeting = open_store(host)
        return url_of(host, self._meeting.port)

    def open(self, meeting: str | None, checkpoint: str | None) -> Timed:
        """Load model and optimizer, and those of a checkpoint."""
        stages: dict[str, float] = {}
        self._own = OwnOfCuda(len(self._node.gpus))
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
                rendezvous=meeting,
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
            keep: Whether a profile follows, which learns nothing and is to be forgotten.
            back: Whether what came before the last profile comes back.
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
        """Take it off the device."""
        footprint, seconds = timed("offload", self._trainer.offload)
        return self._whole(footprint), seconds

    def stay(self) -> Timed:
        """Leave it on the device until the next training."""
        footprint, seconds = timed("stay", self._trainer.stay)
        return self._whole(footprint), seconds

    def _whole(self, footprint: Footprint) -> Footprint:
        """What the process has, from what the trainer does."""
        footprint = self._own.added(footprint)
        return footprint if self._buffer is None else footprint + self._buffer.footprint()

    def update(self, *parts: Sequence[Sampled]) -> dict[str, float]:
        """Train on an iteration's responses, as each engine has them.

        Raises:
            RuntimeError: a token was sampled by weights older than the job's staleness allows (S1 of `runtime.grpo.asynchronous`).
            TrainingError: something is not finite.
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

    def keep_weights(self, whole: bool) -> Kept:
        """Keep a copy of new weights in host memory, to be sent when the device is somebody else's; every rank is called.

        Args:
            whole: rank 0 keeps all of them and the others none; else each its shard.
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
        return Kept(trainer.updates, layout, ranges)

    def send(self, transfer: Transfer) -> int:
        """Send what was kept to the rollout workers, which receive it at the same time; returns the bytes.

        Raises:
            RuntimeError: other weights were kept, or a stream broke; one line.
        """
        from runtime.residency.layout import Memory
        from runtime.sync.streams import send_streams

        assert self._buffer is not None
        (version, nbytes), self._pending_weights = self._pending_weights, None
        return send_streams(self._rank, transfer, version, self._buffer.bytes[:nbytes], Memory(self._buffer.file))

    def begin_writing(self, folder: str) -> None:
        """Begin to write this rank's part of a checkpoint, of the state as it is now, in a thread.

        It is read in host memory where the state waits, and stays there until it is written, whatever is trained meanwhile.
        """
        if self._writing is not None:
            wait([self._writing])  # where another rank could not begin, nobody has waited for it
        self._trainer.offload()  # it may have stayed: what is read on the device would be copied
        reading = ExitStack()
        shards, info = reading.enter_context(self._trainer.shards())

        def write() -> dict[str, tuple[int, str]]:
            with reading:
                return write_shards(Path(folder), self._rank, shards, info)

        self._writing = self._writer.submit(write)

    def written(self) -> dict[str, tuple[int, str]] | None:
        """What was begun: bytes and SHA-256 of the files, by name, when they are on the disk; None before.

        Raises:
            OSError: the disk is full, or the folder is not there any more.
        """
        return self._writing.result() if self._writing is not None and self._writing.done() else None

    def close(self) -> None:
        """Give everything back."""
        if hasattr(self, "_trainer"):
            self._trainer.close()
        if self._buffer is not None:
            self._buffer.close()


def check_versions(trained: int, versions: NDArray[np.int64], staleness: int) -> None:
    """Assert S1.

    Args:
        trained: version of the weights that are about to be trained. versions: that sampled the tokens, one each.

    Raises:
        RuntimeError: a token is too old, or newer than what is trained; one line.
    """
    if len(versions) and not trained - staleness <= versions.min() <= versions.max() <= trained:
        span = f"{versions.min()} to {versions.max()}" if versions.min() < versions.max() else f"{versions.min()}"
        problem = f"S1: responses were sampled with version {span} of the weights, trained is version {trained}"
        raise RuntimeError(f"{problem} with a staleness of {staleness}")
