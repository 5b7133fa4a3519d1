"""Policies by a name and options, as in `round-robin,migrate=0.8`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rollmux_env.errors import InputError

Made = TypeVar("Made")


def make_named(kind: str, table: Mapping[str, Callable[..., Made]], spec: str, others: Iterable[str] = ()) -> Made:
    """The policy that a spec names.

    Args:
        kind: what it is called in errors, as `dispatch policy`.
        table: names, and who makes the policy from keyword options.
        spec: a name of `table`, then options as key=value: JSON, else text.
        others: names that an error lists too.

    Raises:
        InputError: there is none of that name, or it does not take these options; one line.
    """
    name, *pairs = spec.split(",")
    if name not in table:
        raise InputError(f"{kind} '{name}': there is none; the names are {', '.join((*table, *others))}")
    known = inspect.signature(table[name]).parameters
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in known or key in options:
            raise InputError(f"{kind} '{spec}': {name} has the options {', '.join(known) or 'none'}, as key=value, once")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    try:
        return table[name](**options)
    except ValueError as error:
        raise InputError(f"{kind} '{spec}': {error}") from None
