"""Dispatch policies: which waiting phase of a group gets its nodes next."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from policies.dispatch.round_robin import RoundRobin
from policies.dispatch.work_conserving import WorkConserving
from rollmux_env.dispatcher import DispatchPolicy
from rollmux_env.errors import InputError

DISPATCH: dict[str, Callable[..., DispatchPolicy]] = {
    "round-robin": RoundRobin,
    "fifo": lambda migrate=None: WorkConserving(0, migrate),
    "shortest-first": lambda migrate=None: WorkConserving(1, migrate),
    "longest-first": lambda migrate=None: WorkConserving(-1, migrate),
}
LEARNED = "learned:"  # then `default`, or the path of a policy file


def make_dispatch(spec: str) -> DispatchPolicy:
    """A dispatch policy by its name.

    Args:
        spec: a name of `DISPATCH`, `learned:default` or `learned:PATH`; then options, as in `round-robin,migrate=0.8`.

    Raises:
        InputError: there is none of that name, it does not take these options, or the policy file is none; one line.
    """
    if spec.startswith(LEARNED):
        from policies.dispatch.learned import Learned

        return Learned(spec.removeprefix(LEARNED))
    name, *pairs = spec.split(",")
    if name not in DISPATCH:
        names = ", ".join((*DISPATCH, f"{LEARNED}default", f"{LEARNED}PATH"))
        raise InputError(f"dispatch policy '{name}': there is none; the names are {names}")
    known = inspect.signature(DISPATCH[name]).parameters
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in known or key in options:
            raise InputError(f"dispatch policy '{spec}': {name} has the options {', '.join(known) or 'none'}, as key=value, once")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    try:
        return DISPATCH[name](**options)
    except ValueError as error:
        raise InputError(f"dispatch policy '{spec}': {error}") from None
