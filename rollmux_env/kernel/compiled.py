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

from rollmux_env.kernel.linking import CalleeCompiler, EntryCompiler, is_tested

F = TypeVar("F", bound=Callable[..., object])

_KERNEL = Path(__file__).parent
_LINKED = (
    _KERNEL,
    _KERNEL / "neighbourhood",
    _KERNEL / "dispatch",
    *(_KERNEL.parent / "envs" / name for name in ("placement", "dispatch", "rollout")),
)
_checked: set[Path] = set()


def drop_stale(folder: Path, cache: Path, linked: Iterable[Path] = ()) -> None:
    """Forget compiled code that was made of other sources than a folder's present ones.

    Numba looks at the file of a function alone, yet machine code holds what the function calls in other files too: after an edit or
    an update of some files it would run the old code.

    Args:
        folder: Folder of the sources.
        cache: Folder in which numba keeps their compiled code.
        linked: Other folders that its functions call into.
    """
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *(file for other in linked for file in other.glob("*.py"))}):
        digest.update(b"\0" + source.read_bytes())
    stamp = cache / "sources.sha256"
    with suppress(OSError):  # a folder that cannot be written holds no compiled code
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for file in cache.glob("*.nb[ic]"):
            file.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())


@overload
def compiled(function: F) -> F: ...


@overload
def compiled(*, arrays: bool, inline: bool = False) -> Callable[[F], F]: ...


def compiled(function: Any = None, *, arrays: bool = True, inline: bool = False) -> Any:
    """Compile a function to machine code, without fast-math: results are the same bytes everywhere IEEE 754 holds.

    Args:
        function: Function to compile; None returns a decorator with these options.
        arrays: False for a function that makes no arrays, gets none from the functions it calls, and returns none. Numba then
            counts no references to arrays in it (its internal flag `_nrt`, used here alone). Otherwise every access to a row or a
            column of a table increments and decrements a counter atomically, which takes most of the time of loops over jobs,
            groups and candidates. Numba refuses to compile such a function if it makes an array. An array that it gets from a
            function that it calls is never freed; one that it passes to a function that counts references is freed too early.
        inline: True for a function that loops over jobs, groups or candidates call and that often returns at once. Every call of a
            compiled function passes each array of a tuple as seven numbers, some 250 of them with a `Chance`. LLVM does not inline
            a large function even if it has a single caller, since another module could call it.
    """
    if function is None:
        return partial(_njit, _nrt=arrays, forceinline=inline)
    return _njit(function, _nrt=arrays)  # explicit, or numba would take the flag of the calling function


def twin(function: F) -> F:
    """Compile a plain function, and all plain functions that it calls.

    The same source runs over objects in Python and over records as machine code. It makes no arrays, gets none from the functions
    it calls, and returns none.
    """
    return cast("F", _twin(function))


@cache
def _twin(function: Any) -> Any:
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        if isinstance(scope.get(name), FunctionType):
            scope[name] = _twin(scope[name])
    return _njit(FunctionType(function.__code__, scope, function.__name__, function.__defaults__), _nrt=False)


def _njit(function: Any, **flags: bool) -> Any:
    if not is_tested():
        return _for_all_constants(_dispatcher(function, **flags))
    entered = _dispatcher(function, pipeline_class=EntryCompiler, no_cfunc_wrapper=True, **flags)
    called = _dispatcher(_copy(function), pipeline_class=CalleeCompiler, no_cfunc_wrapper=True, no_cpython_wrapper=True, **flags)
    return _for_all_constants(entered, called)


def _copy(function: Any) -> Any:
    """Return a copy of a function whose compiled code has separate symbols and files."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
    copy.__qualname__ = f"{function.__qualname__}.called"
    return copy


def _dispatcher(function: Any, **options: Any) -> Any:
    try:
        dispatcher = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder to keep it in: neither this one nor the user's cache can be written
        return numba.njit(nogil=True, **options)(function)
    cache, folder = _cache_folder(dispatcher), Path(function.__code__.co_filename).parent
    if cache is not None and cache not in _checked:
        _checked.add(cache)
        drop_stale(folder, cache, _LINKED)
    return dispatcher


def _cache_folder(function: Any) -> Path | None:
    """Return the folder in which numba keeps the code of a compiled function, or None if it found none that it can write."""
    path = getattr(getattr(function, "_cache", None), "cache_path", None)
    return None if path is None else Path(path)


def _for_all_constants(entered: Any, called: Any = None) -> Any:
    """Let other compiled code call a function by the types of its arguments alone.

    Otherwise numba compiles the function, and all that it calls, once more for every constant in a call, such as `f(0)`, `f(-1)`
    and `f(True)`.

    Args:
        entered: Dispatcher of the function.
        called: Dispatcher for calls from compiled code, None for the same.
    """
    called = entered if called is None else called
    template = getattr(called, "get_call_template", None)
    if template is not None:  # without it numba compiles nothing

        def without_literals(args: Iterable[Any], kws: dict[str, Any]) -> Any:
            return template(tuple(map(unliteral, args)), {name: unliteral(kind) for name, kind in kws.items()})

        entered.get_call_template = without_literals
        entered.get_overload = called.get_overload
    return entered


def compiling_notice(function: Callable[..., object], takes: str) -> str | None:
    """Return a line that says that the kernel is going to be compiled, or None if an earlier process left it on disk.

    Args:
        function: Compiled function that is needed.
        takes: Duration of compiling, in words.
    """
    folder = _cache_folder(function)
    if folder is None:
        return (
            f"compiling the kernel for this process alone ({takes}): neither {_KERNEL / '__pycache__'} nor the user's cache "
            "can be written; NUMBA_CACHE_DIR may name a folder that can"
        )
    module, name = function.__module__.rpartition(".")[2], function.__name__
    return None if any(folder.glob(f"{module}.{name}-*.nbc")) else f"compiling the kernel, once ({takes})"
