"""The least memory that sampling takes, from sizes alone; vLLM takes a fixed share of the device, and fills it with KV cache."""

from __future__ import annotations

from typing import NamedTuple


class ModelSize(NamedTuple):
    """A decoder's sizes.

    Attributes:
        parameters: all; a tied output matrix counts once. outside: those of no layer. layer: those of the largest layer.
        layers: their number. hidden: width of what goes from layer to layer. inner: width of the feed-forward part.
        vocabulary: number of token ids. cached: numbers that the KV cache holds a token.
        whole_logits: its log-probs are not computed in chunks.
    """

    parameters: int
    outside: int
    layer: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    cached: int
    whole_logits: bool = False


class SamplingMemory(NamedTuple):
    """Bytes of one engine.

    Attributes:
        weights, cache: on each of its GPUs, or in its process; the cache is that of one response.
        asleep, staged: in host memory: its weights while it sleeps, and new ones.
    """

    weights: int
    cache: int
    asleep: int
    staged: int

    @property
    def device(self) -> int:
        """What it takes of a device at least."""
        return self.weights + self.cache

    @property
    def host(self) -> int:
        """What it takes of host memory."""
        return self.asleep + self.staged


def sampling_memory(size: ModelSize, length: int, tensor_parallel: int, on_gpu: bool) -> SamplingMemory:
    """What an engine takes at least: bf16 on GPUs, float32 on CPUs.

    Args:
        length: tokens of the longest prompt and response. tensor_parallel: GPUs of the engine.
    """
    number = 2 if on_gpu else 4
    whole = number * size.parameters
    return SamplingMemory(whole // tensor_parallel, number * size.cached * length // tensor_parallel, whole, whole)
