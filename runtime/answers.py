"""Waiting for what an actor answers, so that the user may end it."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Any

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
