"""One typed door to numba: compiled on the first call, kept on disk for the next process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile `function` to machine code, without fast-math: results are the same bytes everywhere IEEE 754 holds."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
