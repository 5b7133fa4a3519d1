"""How much of a GPU an engine may take beside the processes that sleep there."""

from __future__ import annotations

from rollmux_env.errors import InputError

USUAL = 0.8
"""Of a GPU that is empty; the rest is for what sleeping processes keep."""
_SPARE = 0.01  # of a GPU: what free memory loses while an engine starts
_LEAST = 0.05


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
