"""One typed door to numba: compiled on the first call, kept on disk for the next process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile `function` to machine code, without fast-math: results are the same bytes everywhere IEEE 754 holds."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder to keep it in: neither this one nor the user's cache can be written
        return cast(F, numba.njit(nogil=True)(function))


def is_compiled() -> bool:
    """Whether an earlier process has left the compiled kernel on disk."""
    from rollmux_env.kernel.candidates import enumerate_candidates

    cache = getattr(enumerate_candidates, "_cache", None)
    folder = Path(getattr(cache, "cache_path", ""))
    return any(folder.glob("candidates.enumerate_candidates*.nbc"))
