"""Residency of an engine: on its device or in host memory, where a sync stages new weights while the engine sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmux_segment import Footprint

from runtime.engines.interface import Engine
from runtime.gpus import CudaOverhead
from runtime.grpo.messages import Timed, stage, timed

if TYPE_CHECKING:
    from runtime.residency.staging import StagedVersion, StageReader, WeightStage
    from runtime.sync.wire import Address, Transfer


class EngineResidency:
    """Moves an engine to its device and off it, and takes new weights for it.

    Args:
        engine: The engine.
        process: Device memory that the process takes beside its engine.
        weights: Memory for the weights that this process stages; it stays empty if another process of the machine stages them.
        reader: Reader of the weights that are staged for this engine.
        stage_bytes: Bytes that staged weights will take in this process, 0 if it stages none.

    Attributes:
        keeps_weights: Whether the engine keeps its weights when it sleeps, even if the same ones are staged.
    """

    def __init__(self, engine: Engine, process: CudaOverhead, weights: WeightStage, reader: StageReader, stage_bytes: int) -> None:
        self._engine, self._process, self._weights, self._reader = engine, process, weights, reader
        self._stage_bytes = stage_bytes
        self.keeps_weights = True
        self._dropped = False  # whether the engine sleeps without weights, because the staged ones will replace them

    @property
    def has_new_weights(self) -> bool:
        """Whether weights newer than the engine's are staged."""
        staged = self._reader.staged
        return staged is not None and staged.version != self._engine.version

    def restore(self) -> Timed:
        """Bring the engine to its device, with the weights that were staged meanwhile."""
        if self._reader.staged is not None and (self._dropped or self.has_new_weights):
            with self._reader.reading() as staged:
                restored = timed("restore", self._engine.restore, *staged)
        else:
            restored = timed("restore", self._engine.restore)
        self._dropped = False
        return restored

    def renew(self) -> Timed:
        """Let the engine, which is on its device, take the staged weights."""
        stages: dict[str, float] = {}
        with self._reader.reading() as staged, stage(stages, "checkpoint"):
            self._engine.update_weights(*staged)
        return Footprint(), stages

    def offload(self) -> Timed:
        """Take the engine off the device. Its weights are not kept if they are also staged, and so can be restored from there."""
        drop = not self.keeps_weights and self._reader.staged is not None and not self.has_new_weights
        footprint, seconds = timed("offload", self._engine.offload, drop)
        self._dropped = self._dropped or drop
        return self._whole(footprint), seconds

    def stay(self) -> Timed:
        """Leave the engine on the device until the next rollout."""
        footprint, seconds = timed("stay", self._engine.stay)
        return self._whole(footprint), seconds

    def _whole(self, footprint: Footprint) -> Footprint:
        """Return the footprint of the whole process, given the footprint of the engine."""
        staged = self._weights.footprint()
        staged = (staged if staged.host else Footprint(host=self._stage_bytes)) + self._reader.footprint()
        return self._process.added(footprint) + staged

    def open_inbox(self) -> Address:
        """Open the inbox for new weights, and return its address."""
        import ray

        from runtime.sync.streams import Inbox

        self._inbox = Inbox(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        return self._inbox.address

    def stage(self, place: int, transfer: Transfer) -> int:
        """Receive new weights into host memory. This needs neither the device nor a permit.

        Args:
            place: Number of this worker among the receivers.
            transfer: The sync.

        Returns:
            Number of bytes that came over the slow link.

        Raises:
            RuntimeError: A stream broke. The engine keeps its weights. The message is one line.
        """
        try:
            return self._inbox.receive(place, transfer, self._weights)
        finally:
            self._weights.end()
            self._inbox.close()

    def staged_version(self) -> StagedVersion | None:
        """Return the weights that are staged here for the engines of this machine, or None."""
        return self._weights.staged_version()

    def set_staged(self, staged: StagedVersion | None) -> None:
        """Tell this process which weights are staged for its engine, possibly by another process.

        Args:
            staged: The staged weights. None means that there are none, and that the engine keeps its own.
        """
        self._reader.staged = staged
        if staged is None:
            self._reader.close()
            self._weights.close()

    def close(self) -> None:
        """End the engine, and release the staged weights."""
        self._engine.close()
        self._reader.close()
        self._weights.close()
