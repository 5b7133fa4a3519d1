"""Calls of users' code: policies, rewards, generators, and functions that make streams.

Such code may raise anything, print, and draw random numbers. Its exceptions become one line with file and line number, its output
goes to stderr, and `seeded` sets the global generators of Python and NumPy. This is not a sandbox: the code has the rights of its
user.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from opcode import opmap
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError, PlanError
from rollmux_env.validation_errors import one_line

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

GENERATOR, REWARD = "the generator", "the reward"
PACKAGES = ("rollmux_env", "policies", "trainers", "runtime")
_OURS = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in PACKAGES)
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platlib", "purelib"))


def is_users(code: object) -> bool:
    """Return whether a function, a class or an object belongs to a user; None does not."""
    while isinstance(code, partial):
        code = code.func
    owner = getattr(code, "__self__", code)
    kind = owner if isinstance(owner, type | FunctionType) else type(owner)
    return owner is not None and kind.__module__.partition(".")[0] not in PACKAGES


def guarded(function: Callable[Arguments, Answer], who: str = "the policy") -> Callable[Arguments, Answer]:
    """Return a function that calls a user's function inside `apart`. A function of RollMux is returned unchanged.

    Args:
        function: Function or method to call.
        who: Subject of the error message, such as `the policy`.
    """
    if not is_users(function):
        return function

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        with apart(who):
            return function(*args, **kwargs)

    return call


@contextmanager
def apart(who: str) -> Iterator[None]:
    """Run a user's code: its output goes to stderr, and its exceptions become one line.

    Args:
        who: Subject of the error message.

    Raises:
        PlanError: If the code raised anything. The message names its file and line.
        InputError: If RollMux refused a request of the code.
        KeyboardInterrupt: If the user pressed Ctrl-C.
    """
    with printing_to_stderr():
        try:
            yield
        except BaseException as error:
            if is_interrupt(error) or _is_refusal(error):
                raise
            raise PlanError(f"{who} raised {described(error)}") from error


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Redirect the output of Python code to stderr."""
    printed, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = printed


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed `random` and `numpy.random` for the code of users, and restore both generators afterwards.

    Args:
        seed: Seed, at least 0.
    """
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 (what users' code draws from)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def keep_stdout() -> None:
    """Reserve standard output for the results of this command. Other output to its descriptor goes to stderr.

    Solvers print from C, and programs that a policy starts inherit the descriptor. `sys.stdout` still reaches the original output.
    """
    out = sys.__stdout__
    if out is None or sys.stdout is not out or out.fileno() != 1:
        return
    out.flush()
    results = os.fdopen(os.dup(1), "w", encoding=out.encoding, errors=out.errors)
    os.dup2(2, 1)
    sys.stdout = results


def described(error: BaseException) -> str:
    """Return an exception and its place in one line: the last line of the user's code, if there is one."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # raised by the user's `__str__`
        text = ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if not frame.filename.startswith((*_OURS, *_LIBRARIES))] or frames
    # A frozen dataclass refuses a write in code that it has generated; `python -c` has its program under the same name.
    own = [frame for frame in own if frame.filename != "<string>"] or own
    where = f" in {own[-1].name} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return one_line(f"{type(error).__name__}{': ' if text else ''}{text}", 500) + where


def brief(value: object) -> str:
    """Return a value from a user's code in at most 100 characters of one line."""
    try:
        text = repr(value)
    except BaseException:  # raised by the user's `__repr__`
        text = f"a {type(value).__name__}"
    return one_line(text, 100)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def is_whole(value: Any, bits: int | None = None) -> bool:
    """Return whether a value is an integer of Python or NumPy; a bool is none.

    Args:
        value: Value to look at.
        bits: Number of bits of the signed integers that compiled code accepts, or None for any size.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        return False
    return bits is None or abs(int(value)) < 2 ** (bits - 1)


def is_number(value: object) -> bool:
    """Return whether a value is a number, finite or infinite."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and value == value


def is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C raised an exception.

    The interrupted code may also raise a KeyboardInterrupt itself.
    """
    if type(error) is not KeyboardInterrupt or error.__traceback__ is None:
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] != opmap["RAISE_VARARGS"]


def _is_refusal(error: BaseException) -> bool:
    """Return whether RollMux raised an error, and not the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, InputError | PlanError) and bool(frames) and frames[-1].filename.startswith(_OURS)
