"""Dispatch policies: which waiting phase of a group gets its nodes next."""

from __future__ import annotations

from collections.abc import Callable

from policies.dispatch.round_robin import RoundRobin
from policies.dispatch.work_conserving import WorkConserving
from rollmux_env.dispatcher import DispatchPolicy
from rollmux_env.errors import InputError

DISPATCH: dict[str, Callable[[], DispatchPolicy]] = {
    "round-robin": RoundRobin,
    "fifo": lambda: WorkConserving(0),
    "shortest-first": lambda: WorkConserving(1),
    "longest-first": lambda: WorkConserving(-1),
}


def make_dispatch(name: str) -> DispatchPolicy:
    """A dispatch policy by its name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in DISPATCH:
        raise InputError(f"dispatch policy '{name}': there is none; the names are {', '.join(DISPATCH)}")
    return DISPATCH[name]()
