"""HexGen's cost model of a pipeline stage, as AReaL-Hex (arXiv 2511.00796) has it: seconds and memory of some layers on a few GPUs.

The paper counts 12 H^2 weights a layer, for hidden width H, with keys and values of every head in the cache. Here these are the
model's own: its weights and its matrix products are spread evenly over its layers, embeddings too, so that a model of the paper's
layers costs what the paper says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.links import Link, machine_link
from rollmux_env.timing.models import ModelShape

MESSAGES = 4  # of tensor parallelism in a layer's forward pass: two all-reduces, each a scatter and a gather
ACTIVATIONS = 4  # numbers of a token and hidden unit that a stage holds while it works


@dataclass(frozen=True)
class Stage:
    """Layers on the GPUs of one tensor-parallel group, all of one type and in one machine.

    Attributes:
        shape: of the whole model. layers: of the stage. hardware: of its GPUs. gpus: their number. link: between them.
    """

    shape: ModelShape
    layers: int
    hardware: Hardware
    gpus: int
    link: Link

    @property
    def parameters(self) -> float:
        """Weights of the stage."""
        return self.shape.parameters * self.layers / self.shape.layers

    def prefill_s(self, sequences: float, tokens: float) -> float:
        """Seconds to read so many prompts of so many tokens each, in one pass."""
        return self._products_s(sequences * tokens, self.hardware.prefill_tflops) + self.messages_s(sequences * tokens)

    def decode_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of one decode step of so many sequences, with so many tokens of context each.

        The paper's sum of reading the weights and of arithmetic; with `context_tokens` also the reading of the cache, which the
        paper leaves out (0 is the paper's), and the fixed seconds of the hardware's step, of which a stage has its layers' share.
        """
        number = self.hardware.number_bytes
        reading_s = self.parameters * number / (self.hardware.weights_gb_s * 1e9 * self.gpus)
        cache_s = sequences * context_tokens * self._cached * number / (self.hardware.kv_gb_s * 1e9 * self.gpus)
        fixed_s = self.hardware.step_s * self.layers / self.shape.layers
        return fixed_s + reading_s + cache_s + self._products_s(sequences, self.hardware.decode_tflops) + self.messages_s(sequences)

    def messages_s(self, tokens: float) -> float:
        """Seconds of the messages of tensor parallelism in one forward pass over so many tokens."""
        if self.gpus == 1:
            return 0.0
        return self.link.seconds(tokens * self.token_bytes / self.gpus, MESSAGES * self.layers)

    def rollout_gb(self, sequences: float, tokens: float, at_work: float) -> float:
        """GB on each GPU for so many sequences of so many tokens each, of which `at_work` are worked on at once."""
        number = self.hardware.number_bytes
        cache = sequences * tokens * self._cached * number
        return ((self.parameters * number + cache) / self.gpus + ACTIVATIONS * at_work * tokens * self.token_bytes) / 1e9

    @property
    def token_bytes(self) -> float:
        """Bytes of a token between two layers."""
        return self.shape.hidden * self.hardware.number_bytes

    @property
    def _cached(self) -> float:
        """Numbers of a token in the stage's KV cache."""
        return self.shape.cached * self.layers / self.shape.layers

    def _products_s(self, tokens: float, tflops: float) -> float:
        return 2 * self.shape.matrix_parameters * self.layers / self.shape.layers * tokens / (tflops * 1e12 * self.gpus)


def pipeline(
    shape: ModelShape, groups: tuple[tuple[Hardware, int], ...], speed: Callable[[Hardware], float]
) -> tuple[Stage, ...] | None:
    """The stages of a pipeline, with layers in proportion to their GPUs' speed; None where there are fewer layers than stages.

    Args:
        groups: hardware and GPUs of each stage, in order. speed: of one GPU, in any unit.
    """
    layers = share_layers(shape.layers, tuple(speed(hardware) * gpus for hardware, gpus in groups))
    if layers is None:
        return None
    return tuple(
        Stage(shape, count, hardware, gpus, machine_link(hardware)) for count, (hardware, gpus) in zip(layers, groups, strict=True)
    )


def share_layers(layers: int, weights: tuple[float, ...]) -> tuple[int, ...] | None:
    """Layers of each stage in proportion to its weight, all whole and at least 1; None where there are fewer layers than stages.

    Largest remainders are rounded up, the first of equal ones first.
    """
    if len(weights) > layers:
        return None
    spare = layers - len(weights)
    exact = [max(0.0, layers * weight / sum(weights) - 1) for weight in weights]
    exact = [spare * share / sum(exact) if sum(exact) else 0.0 for share in exact]
    whole = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda k: whole[k] - exact[k])
    for k in order[: spare - sum(whole)]:
        whole[k] += 1
    return tuple(1 + count for count in whole)
