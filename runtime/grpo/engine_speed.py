"""How fast an engine is, measured when it is made: policies that choose the size of engines forecast with it."""

from __future__ import annotations

from time import perf_counter

from rollmux_env.timing.replica import ReplicaTiming
from runtime.calibration import Grid, Measurer, clock, fit, measure
from runtime.engines.interface import Engine

_ROUNDS = 2
_MOST = 16  # sequences of a measured batch; larger ones are extrapolated
_NEVER_FULL = 2**40  # tokens of the cache


def timing_of(engine: Engine, vocabulary: int, batch: int, prompt: int, response: int) -> ReplicaTiming:
    """Measure an engine at a few points, and fit the replica's numbers to them. Its cache counts as never full.

    Args:
        vocabulary: of the model. batch: sequences that it samples at a time. prompt, response: tokens of the longest ones.

    Raises:
        InputError: it does not hold such a batch.
    """
    import torch

    every = Grid.up_to(min(batch, _MOST), prompt, response)
    grid = Grid(*(tuple(sorted({points[0], points[-1]})) for points in (every.batches, every.contexts, every.prompts)))
    now = clock() if torch.cuda.is_available() else perf_counter  # seconds as they pass: threads share the work
    return fit(measure(Measurer(engine, vocabulary, 0, now), grid, _ROUNDS, ()), _NEVER_FULL)
