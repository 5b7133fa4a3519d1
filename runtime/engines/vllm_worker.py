"""What runs inside each of vLLM's workers: a weight-transfer engine that takes weights which are staged in host memory.

vLLM's own engines (NCCL, CUDA IPC) write into a model that is awake, from a trainer that is on its devices at the same time. Here
other jobs hold both when weights are sent; so they wait in host memory, and this engine takes them at the job's next grant.
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
class Nothing(WeightTransferInitInfo):
    """There is nobody to meet: weights are here already."""


@dataclass
class Staged(WeightTransferUpdateInfo):
    """All weights of a version, in one of two forms.

    Attributes:
        weights: by name, for a worker in the process that staged them.
        path: of `runtime.residency.layout.StagedWeights`, for workers in processes of their own: each takes its part from there.
        alias: a name beside those of the file, and the one whose tensor it means.
        keep: more will come there, so it is mapped (and page-locked) once.
    """

    weights: Mapping[str, Tensor] | None = None
    path: str | None = None
    alias: tuple[str, str] | None = None
    keep: bool = True


class StagedTransfer(WeightTransferEngine[Nothing, Staged]):
    """Loads staged weights, in the form of a checkpoint, layer by layer."""

    init_info_cls, update_info_cls = Nothing, Staged

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Nothing has to be set up."""

    def start_weight_update(self) -> None:
        """Make the layers ready to take weights as a checkpoint has them."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Staged) -> None:
        """Load them: each worker its own part of them."""
        load: Any = self.model.load_weights
        if update_info.path is None:
            assert update_info.weights is not None
            load(update_info.weights.items())
            return
        if self._staged is None:
            self._staged = StageReader(pinned=torch.cuda.is_available())
        weights = self._staged.open(update_info.path).weights  # the engine keeps others from writing them
        load(weights.items())
        if update_info.alias is not None:
            name, meant = update_info.alias
            load([(name, weights[meant])])
        if not update_info.keep:
            self._staged.close()

    _staged: StageReader | None = None

    def finish_weight_update(self) -> None:
        """Bring the layers into the form that the device's kernels want."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        """Give back what is mapped."""
        if self._staged is not None:
            self._staged.close()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """vLLM 0.25 and 0.26 ask for it; a trainer stages weights by `runtime.sync`.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("weights are staged by runtime.sync")


WeightTransferEngineFactory.register_engine(BACKEND, StagedTransfer)


class WorkerExtension:
    """Mixed into vLLM's worker class (`worker_extension_cls`); with its module the engine above is known there."""

    def weight_bytes(self: Any) -> int:
        """Bytes of this worker's parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model_runner.get_model().parameters())

    def release_host_cache(self: Any) -> None:
        """Give page-locked host memory that torch keeps for later back to the system: copies of weights that have woken."""
        own: Any = torch._C  # noqa: SLF001 (torch has no public call for it in all versions that are supported)
        empty = getattr(own, "_host_emptyCache", None) or getattr(own, "_accelerator_emptyHostCache", None)
        if empty is not None:
            empty()
