"""Code that runs inside each of vLLM's workers: a weight-transfer engine that loads weights staged in host memory.

vLLM's own transfer engines (NCCL, CUDA IPC) write into a model that is awake, from a trainer that is on its devices at the same
time. Here other jobs hold both when weights are sent. So the weights wait in host memory, and this engine loads them at the job's
next permit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from runtime.residency.staging import StageReader

BACKEND = "staged"


@dataclass
class EmptyInit(WeightTransferInitInfo):
    """Initialisation without content, because no connection has to be set up."""


@dataclass
class StagedUpdate(WeightTransferUpdateInfo):
    """All weights of a version, in one of two forms.

    Attributes:
        weights: Weights by name, for a worker in the process that staged them, or None.
        path: Path of `runtime.residency.layout.StagedWeights`, for workers in other processes, which read their parts from it.
        alias: An additional name, and the name in the file whose tensor it means; or None.
        keep: Whether further versions will come at this path, so that it stays mapped (and page-locked).
    """

    weights: Mapping[str, Tensor] | None = None
    path: str | None = None
    alias: tuple[str, str] | None = None
    keep: bool = True


class StagedTransfer(WeightTransferEngine[EmptyInit, StagedUpdate]):
    """Loads staged weights layer by layer, in the form of a checkpoint."""

    init_info_cls, update_info_cls = EmptyInit, StagedUpdate

    def init_transfer_engine(self, init_info: EmptyInit) -> None:
        """Do nothing, because no connection is needed."""

    def start_weight_update(self) -> None:
        """Prepare the layers to take weights in the form of a checkpoint."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: StagedUpdate) -> None:
        """Load the weights. Each worker loads its part of them."""
        load: Any = self.model.load_weights
        if update_info.path is None:
            assert update_info.weights is not None
            load(update_info.weights.items())
            return
        if self._staged is None:
            self._staged = StageReader(pinned=torch.cuda.is_available())
        weights = self._staged.open(update_info.path).weights  # the engine holds a lock that keeps others from writing
        load(weights.items())
        if update_info.alias is not None:
            name, meant = update_info.alias
            load([(name, weights[meant])])
        if not update_info.keep:
            self._staged.close()

    _staged: StageReader | None = None

    def finish_weight_update(self) -> None:
        """Convert the layers to the form of the device's kernels."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        """Unmap the staged file."""
        if self._staged is not None:
            self._staged.close()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Raise an error. vLLM 0.25 and 0.26 require this method, but a trainer stages weights by `runtime.sync`.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("weights are staged by runtime.sync")


WeightTransferEngineFactory.register_engine(BACKEND, StagedTransfer)


class WorkerExtension:
    """Mixin for vLLM's worker class (`worker_extension_cls`). Importing its module registers the transfer engine."""

    def weight_bytes(self: Any) -> int:
        """Return the bytes of this worker's parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model_runner.get_model().parameters())

    def release_host_cache(self: Any) -> None:
        """Return page-locked host memory that torch caches to the system, such as copies of weights that have been restored."""
        own: Any = torch._C  # noqa: SLF001 (torch has no public call for it in all versions that are supported)
        empty = getattr(own, "_host_emptyCache", None) or getattr(own, "_accelerator_emptyHostCache", None)
        if empty is not None:
            empty()
