"""Answers of a coordinator: waiting for one, so that the user may end it, and the kinds of `InputError` with which it refuses.

A service's face over HTTP answers each kind with a status of its own.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Any

from rollmux_env.errors import InputError
from runtime.signals import check_signals

_LOOKS_S = 0.2


def result_of(call: Any, timeout_s: float = inf) -> Any:
    """What a call of an actor gives.

    Raises:
        KeyboardInterrupt: there were more interrupts than are allowed for. GetTimeoutError: it takes longer. Else as `ray.get`.
    """
    import ray

    until_s = monotonic() + timeout_s
    while not ray.wait([call], timeout=_LOOKS_S)[0]:
        check_signals()
        if monotonic() > until_s:
            raise ray.exceptions.GetTimeoutError(f"no answer after {timeout_s:g} s")
    return ray.get(call)


class NotFound(InputError):
    """There is no such job, lease or node. One line."""


class Conflict(InputError):
    """It is not possible in the state that things are in now. One line."""


class Unprocessable(InputError):
    """A job that cannot be. One line."""


class TooMany(InputError):
    """Above a limit. One line."""


class NotAllowed(InputError):
    """The holder of this token may not. One line."""
