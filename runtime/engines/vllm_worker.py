"""What runs inside each of vLLM's workers when an engine has several: they read new weights from the staged file themselves."""

from __future__ import annotations

from typing import Any


class StagedWeights:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    def load_staged(self: Any, path: str) -> None:
        """Load all weights of a safetensors file, each worker its own part of them."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            self.reload_weights(weights_iterator=((name, file.get_tensor(name)) for name in file.keys()))  # noqa: SIM118

    def weight_bytes(self: Any) -> int:
        """Bytes of this worker's parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model_runner.get_model().parameters())
