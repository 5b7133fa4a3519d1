"""Sums, functions and seeded draws that give the same bits on every processor.

BLAS adds in an order that depends on the processor, and NumPy's exponentials, logarithms and powers differ in the last bit on
AVX-512. Streams, seconds and dollars are computed with the functions here. The learned policies' networks are not: a near-tie of
two scores in float32 may be decided differently on another processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import repeat

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

FIRST_DRAWN_SEED = 2**16  # lowest seed that environments draw for their streams; lower ones are for evaluation
_LARGEST = 700.0  # largest exponent; e^710 overflows


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """Return the sum of the products of two vectors, rounded once."""
    return math.fsum((np.asarray(a) * np.asarray(b)).tolist())


def exp(values: ArrayLike) -> Floats:
    """Return e to each value; values above 700 count as 700."""
    return _each(math.exp, np.minimum(values, _LARGEST))


def log(values: ArrayLike) -> Floats:
    """Return the natural logarithm of each value, which must be above 0."""
    return _each(math.log, values)


def log1p(values: ArrayLike) -> Floats:
    """Return the natural logarithm of 1 plus each value, which must be above -1."""
    return _each(math.log1p, values)


def power(values: ArrayLike, exponent: float) -> Floats:
    """Return each value, which must not be negative, to a positive exponent."""
    return _each(pow, values, repeat(exponent))


def uniform(seed: int, purpose: str, n: int) -> Floats:
    """Draw uniform numbers in [0, 1) from the random stream of a purpose, shape (n,).

    Earlier numbers do not depend on n.

    Args:
        seed: Seed of all purposes.
        purpose: Name of the purpose.
        n: Number of draws.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(purpose.encode()))
    return np.random.default_rng(sequence).random(n)


def between(u: Floats, low: Floats | float, high: Floats | float) -> Floats:
    """Scale uniform numbers to [low, high]."""
    return low + (high - low) * u


def _each(function: Callable[..., float], values: ArrayLike, *more: Iterable[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    return np.fromiter(map(function, array.ravel().tolist(), *more), np.float64, array.size).reshape(array.shape)
