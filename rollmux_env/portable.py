"""Sums, functions and seeded draws that give the same bits on every processor.

BLAS adds in an order that depends on the processor, and NumPy's own exponentials, logarithms and powers differ in the last bit
where it has AVX-512. Streams, seconds and dollars are computed with these. The learned policies' networks are not: a near-tie of
two scores in float32 may be decided otherwise elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import repeat

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

FIRST_DRAWN_SEED = 2**16  # environments draw the seeds of their streams from here on; those below are for evaluation
_LARGEST = 700.0  # of an exponent; e^710 overflows


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """Sum of the products of two vectors, rounded once."""
    return math.fsum((np.asarray(a) * np.asarray(b)).tolist())


def exp(values: ArrayLike) -> Floats:
    """e to each value, of those above 700 as if they were 700."""
    return _each(math.exp, np.minimum(values, _LARGEST))


def log(values: ArrayLike) -> Floats:
    """Natural logarithm of each value, which is above 0."""
    return _each(math.log, values)


def log1p(values: ArrayLike) -> Floats:
    """Natural logarithm of 1 plus each value, which is above -1."""
    return _each(math.log1p, values)


def power(values: ArrayLike, exponent: float) -> Floats:
    """Each value, which is not negative, to a positive exponent."""
    return _each(pow, values, repeat(exponent))


def uniform(seed: int, purpose: str, n: int) -> Floats:
    """(n,) uniform numbers in [0, 1) from the stream of a purpose; earlier numbers do not depend on n."""
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(purpose.encode()))
    return np.random.default_rng(sequence).random(n)


def between(u: Floats, low: Floats | float, high: Floats | float) -> Floats:
    """Uniform in [low, high]."""
    return low + (high - low) * u


def _each(function: Callable[..., float], values: ArrayLike, *more: Iterable[float]) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    return np.fromiter(map(function, array.ravel().tolist(), *more), np.float64, array.size).reshape(array.shape)
