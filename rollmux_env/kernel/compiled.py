"""One typed door to numba: compiled on the first call, kept on disk for the next process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast, overload

import numba
from numba.core.types import unliteral

F = TypeVar("F", bound=Callable[..., object])

_KERNEL = Path(__file__).parent
_LINKED = (
    _KERNEL,
    _KERNEL / "neighbourhood",
    _KERNEL / "dispatch",
    *(_KERNEL.parent / "envs" / name for name in ("placement", "dispatch", "rollout")),
)
_checked: set[Path] = set()


def drop_stale(folder: Path, linked: Iterable[Path] = ()) -> None:
    """Forget compiled code that was made of other sources than a folder's present ones.

    Numba looks at the file of a function alone, yet machine code holds what the function calls in other files too: after an edit or
    an update of some files it would run the old code.

    Args:
        linked: other folders that its functions call into.
    """
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *(file for other in linked for file in other.glob("*.py"))}):
        digest.update(b"\0" + source.read_bytes())
    stamp = folder / "__pycache__" / "sources.sha256"
    with suppress(OSError):  # a folder that cannot be written holds no compiled code
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for file in stamp.parent.glob("*.nb[ic]"):
            file.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


@overload
def compiled(function: F) -> F: ...


@overload
def compiled(*, arrays: bool, inline: bool = False) -> Callable[[F], F]: ...


def compiled(function: Any = None, *, arrays: bool = True, inline: bool = False) -> Any:
    """Compile a function to machine code, without fast-math: results are the same bytes everywhere IEEE 754 holds.

    Args:
        arrays: False for a function that makes no arrays, gets none from what it calls, and gives none back. References to arrays
            are then not counted in it (numba's internal flag `_nrt`, used here alone): else every look at a row or a column of a
            table takes one and gives it back, each an atomic operation, and in loops over jobs, groups and candidates that is most
            of the time. Numba refuses to compile such a function if it makes an array. One that it gets from a function that it
            calls is never freed; one that it gives to a function that counts is freed too early.
        inline: True for what a loop over jobs, groups or candidates calls and often ends at once: every call of a compiled function
            hands over each array of a tuple as seven numbers, some 250 of them with a `Chance`. LLVM does not inline a function of
            some size even where nobody else calls it, since another module could.
    """
    if function is None:
        return partial(_njit, _nrt=arrays, forceinline=inline)
    return _njit(function, _nrt=arrays)  # said, or it would be as in the function that calls it


def twin(function: F) -> F:
    """Compile a plain function, and all plain functions that it calls: one text runs over objects as it is, and over records as
    machine code. It makes no arrays, gets none from what it calls, and gives none back."""
    return cast("F", _twin(function))


@cache
def _twin(function: Any) -> Any:
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(scope.get(name), FunctionType):
            scope[name] = _twin(scope[name])
    return _njit(FunctionType(function.__code__, scope, function.__name__, function.__defaults__), _nrt=False)


def _njit(function: Any, **flags: bool) -> Any:
    folder = Path(function.__code__.co_filename).parent
    if folder not in _checked and Path(function.__code__.co_filename).is_file():
        _checked.add(folder)
        drop_stale(folder, _LINKED)
    try:
        return _for_all_constants(numba.njit(cache=True, nogil=True, **flags)(function))
    except RuntimeError:  # no folder to keep it in: neither this one nor the user's cache can be written
        return _for_all_constants(numba.njit(nogil=True, **flags)(function))


def _for_all_constants(dispatcher: Any) -> Any:
    """Let other compiled code call a function by the types of its arguments alone: numba compiles it anew, and all that it calls,
    for every constant that stands in a call, `f(0)`, `f(-1)`, `f(True)`."""
    template = getattr(dispatcher, "get_call_template", None)
    if template is not None:  # else numba is told to compile nothing

        def without_literals(args: Iterable[Any], kws: dict[str, Any]) -> Any:
            return template(tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()})

        dispatcher.get_call_template = without_literals
    return dispatcher


def compiling_notice(function: Callable[..., object], takes: str) -> str | None:
    """Return a line that says that the kernel is going to be compiled, or None if an earlier process left it on disk.

    Args:
        function: Compiled function that is needed.
        takes: Duration of compiling, in words.
    """
    folder = getattr(getattr(function, "_cache", None), "cache_path", None)  # None: numba found no folder that it can write
    if folder is None:
        return (
            f"compiling the kernel for this process alone ({takes}): neither {_KERNEL / '__pycache__'} nor the user's cache "
            "can be written; NUMBA_CACHE_DIR may name a folder that can"
        )
    module, name = function.__module__.rpartition(".")[2], function.__name__
    return None if any(Path(folder).glob(f"{module}.{name}-*.nbc")) else f"compiling the kernel, once ({takes})"
