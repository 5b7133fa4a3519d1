"""Least memory of sampling, computed from sizes alone, and the share of a GPU that vLLM takes and fills with KV cache."""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.errors import InputError

USUAL = 0.8
"""Share of an empty GPU that an engine takes. The rest is for processes that sleep there."""
SEQUENCES = 256
"""Default for the largest number of responses that vLLM samples at a time."""
BLOCK = 16
"""Number of tokens in a block of vLLM's cache on a GPU."""
_WORK = 0.2  # part of an engine's share that is neither weights nor cache; an estimate
_SPARE = 0.01  # share of a GPU that free memory may lose while an engine starts
_LEAST = 0.05  # least share of a GPU with which an engine can start


class ModelSize(NamedTuple):
    """Sizes of a decoder model.

    Attributes:
        parameters: Number of all parameters, with a tied output matrix counted once.
        outside: Number of parameters outside of layers.
        layer: Number of parameters of the largest layer.
        layers: Number of layers.
        hidden: Width of the hidden states.
        inner: Width of the feed-forward part.
        vocabulary: Number of token ids.
        cached: Number of values in the KV cache for one token.
        whole_logits: Whether its log-probs cannot be computed in chunks.
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
    """Memory of one engine in bytes.

    Attributes:
        weights: Weights on each of its GPUs, or in its process.
        cache: KV cache of one response on each of its GPUs, or in its process.
        asleep: Weights in host memory while it sleeps.
        staged: New weights in host memory, once for all engines of the job on a machine.
    """

    weights: int
    cache: int
    asleep: int
    staged: int

    @property
    def device(self) -> int:
        """Least memory that it takes on a device."""
        return self.weights + self.cache


def sampling_memory(size: ModelSize, length: int, tensor_parallel: int, on_gpu: bool) -> SamplingMemory:
    """Return the least memory that an engine takes, in bf16 on GPUs and in float32 on CPUs.

    Args:
        size: Sizes of the model.
        length: Tokens of the longest prompt and response together.
        tensor_parallel: Number of GPUs of the engine.
        on_gpu: Whether the engine has GPUs.
    """
    number = 2 if on_gpu else 4
    whole = number * size.parameters
    return SamplingMemory(whole // tensor_parallel, number * size.cached * length // tensor_parallel, whole, whole)


def cache_wanted(parameters: int, cached: int, tokens: int, tensor_parallel: int, share_bytes: float) -> int | None:
    """Return the size of the KV cache on each GPU with which no response of a job has to wait for space, in bytes.

    Args:
        parameters: Number of parameters of the model.
        cached: Number of values in the KV cache of each GPU for one token.
        tokens: Sum of the longest lengths of all responses that are sampled at a time, including prompts.
        tensor_parallel: Number of GPUs of the engine.
        share_bytes: Memory of each GPU that the engine may take, bytes.

    Returns:
        The size, or None if it may not fit into the share, so that vLLM has to measure what fits.
    """
    weights, wanted = -(-2 * parameters // tensor_parallel), 2 * cached * tokens
    return wanted if weights + wanted <= share_bytes * (1 - _WORK) else None


def device_share(free_bytes: int, total_bytes: int, wanted: float | None) -> float:
    """Return the share of a device's memory for an engine that starts while others sleep on it.

    Args:
        free_bytes: Free memory of the device, bytes. Memory of sleeping processes is not free.
        total_bytes: Memory of the device, bytes.
        wanted: The job's `rollout.engine_options.gpu_memory`, or None.

    Returns:
        `wanted`, or without it `USUAL` or the free share if that is less.

    Raises:
        InputError: The wanted share is not free, or almost nothing is.
    """
    free = free_bytes / total_bytes - _SPARE
    if (wanted or _LEAST) > free:
        asked = f"{wanted:g} of the GPU is asked for" if wanted else "an engine needs a part of the GPU"
        raise InputError(
            f"rollout.engine_options.gpu_memory: {asked}, of {total_bytes / 1e9:.1f} GB {free_bytes / 1e9:.1f} GB are free; "
            "processes that sleep there keep the rest"
        )
    return wanted or min(USUAL, free)
