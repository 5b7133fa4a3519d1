"""The least memory that sampling takes, from sizes alone, and the share of a GPU that vLLM takes, to fill it with KV cache."""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.errors import InputError

USUAL = 0.8
"""Of a GPU that is empty; the rest is for what sleeping processes keep."""
SEQUENCES = 256
"""Most responses that vLLM samples at a time, where nobody says how many."""
BLOCK = 16
"""Tokens of a block of vLLM's cache on a GPU."""
_WORK = 0.2  # of an engine's share: for what is neither weights nor cache; nobody has measured it
_SPARE = 0.01  # of a GPU: what free memory loses while an engine starts
_LEAST = 0.05


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
        asleep: in host memory: its weights while it sleeps. staged: new ones, once for all engines of the job on a machine.
    """

    weights: int
    cache: int
    asleep: int
    staged: int

    @property
    def device(self) -> int:
        """What it takes of a device at least."""
        return self.weights + self.cache


def sampling_memory(size: ModelSize, length: int, tensor_parallel: int, on_gpu: bool) -> SamplingMemory:
    """What an engine takes at least: bf16 on GPUs, float32 on CPUs.

    Args:
        length: tokens of the longest prompt and response. tensor_parallel: GPUs of the engine.
    """
    number = 2 if on_gpu else 4
    whole = number * size.parameters
    return SamplingMemory(whole // tensor_parallel, number * size.cached * length // tensor_parallel, whole, whole)


def cache_wanted(parameters: int, cached: int, tokens: int, tensor_parallel: int, share_bytes: float) -> int | None:
    """The bytes of KV cache on each GPU with which no response of a job has to wait for room.

    Args:
        parameters: of the model. cached: numbers that the cache holds a token. tokens: of all that are sampled at a time, at their
            longest, prompts included. tensor_parallel: GPUs of the engine. share_bytes: of each GPU, that the engine may take.

    Returns:
        None: so much may not fit the share; vLLM is to measure what does.
    """
    weights, wanted = (-(-2 * numbers // tensor_parallel) for numbers in (parameters, cached * tokens))
    return wanted if weights + wanted <= share_bytes * (1 - _WORK) else None


def device_share(free_bytes: int, total_bytes: int, wanted: float | None) -> float:
    """The share of a device's memory for an engine that starts while others sleep on it.

    Args:
        free_bytes, total_bytes: of the device. What sleepers keep is measured by it: they are not free.
        wanted: `rollout.engine_options.gpu_memory`.

    Returns:
        What is wanted; else `USUAL`, or what is free if that is less.

    Raises:
        InputError: so much is not free, or hardly anything; one line.
    """
    free = free_bytes / total_bytes - _SPARE
    if (wanted or _LEAST) > free:
        asked = f"{wanted:g} of the GPU is asked for" if wanted else "an engine needs a part of the GPU"
        raise InputError(
            f"rollout.engine_options.gpu_memory: {asked}, of {total_bytes / 1e9:.1f} GB {free_bytes / 1e9:.1f} GB are free; "
            "processes that sleep there keep the rest"
        )
    return wanted or min(USUAL, free)
