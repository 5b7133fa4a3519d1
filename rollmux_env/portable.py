"""Sums and functions that give the same bits on every processor.

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

_LARGEST = 700.0  # of an exponent; e^710 overflows


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """Sum of the products of two vectors, rounded once."""
    return math.fsum((np.asarray(a) * np.asarray(b)).tolist())


def exp(values: ArrayLike) -> NDArray[np.float64]:
    """e to each value, of those above 700 as if they were 700."""
    return _each(math.exp, np.minimum(values, _LARGEST))


def log(values: ArrayLike) -> NDArray[np.float64]:
    """Natural logarithm of each value, which is above 0."""
    return _each(math.log, values)


def log1p(values: ArrayLike) -> NDArray[np.float64]:
    """Natural logarithm of 1 plus each value, which is above -1."""
    return _each(math.log1p, values)


def power(values: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """Each value, which is not negative, to a positive exponent."""
    return _each(pow, values, repeat(exponent))


def _each(function: Callable[..., float], values: ArrayLike, *more: Iterable[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.fromiter(map(function, array.ravel().tolist(), *more), np.float64, array.size).reshape(array.shape)
