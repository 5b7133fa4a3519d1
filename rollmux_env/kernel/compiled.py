"""One typed door to numba: compiled on the first call, kept on disk for the next process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def drop_stale(folder: Path) -> None:
    """Forget compiled code that was made of other sources than a folder's present ones.

    Numba looks at the file of a function alone, yet machine code holds what the function calls in other files too: after an edit or
    an update of some files it would run the old code.
    """
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sorted(folder.glob("*.py")))).hexdigest()
    stamp = folder / "__pycache__" / "sources.sha256"
    with suppress(OSError):  # a folder that cannot be written holds no compiled code
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for file in stamp.parent.glob("*.nb[ic]"):
            file.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest)


drop_stale(Path(__file__).parent)


def compiled(function: F) -> F:
    """Compile `function` to machine code, without fast-math: results are the same bytes everywhere IEEE 754 holds."""
    return _njit(function, _nrt=True)  # said, or it would be as in the function that calls it


def uncounted(function: F) -> F:
    """As `compiled`, for a function that makes no arrays, gets none from what it calls, and gives none back.

    References to arrays are not counted in it. Else every look at a row or a column of a table takes one and gives it back, each an
    atomic operation, and in loops over jobs, groups and candidates that is most of the time. What it hands on counts for nobody, so
    one that Python calls spares all below it the counting. Numba refuses to compile an uncounted function that makes an array; one
    that it got from a function that it calls would never be freed.
    """
    return _njit(function, _nrt=False)


def _njit(function: F, **flags: bool) -> F:
    try:
        return cast(F, numba.njit(cache=True, nogil=True, **flags)(function))
    except RuntimeError:  # no folder to keep it in: neither this one nor the user's cache can be written
        return cast(F, numba.njit(nogil=True, **flags)(function))


def is_compiled() -> bool:
    """Whether an earlier process has left the compiled kernel on disk."""
    from rollmux_env.kernel.candidates import enumerate_candidates

    cache = getattr(enumerate_candidates, "_cache", None)
    folder = Path(getattr(cache, "cache_path", ""))
    return any(folder.glob("candidates.enumerate_candidates*.nbc"))
