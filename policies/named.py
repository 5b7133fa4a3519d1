"""Parses a policy name with options, as in `round-robin,migrate=0.8`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rollmux_env.complaint import not_one_of
from rollmux_env.errors import InputError
from rollmux_env.suggestions import did_you_mean

Made = TypeVar("Made")


def make_named(kind: str, table: Mapping[str, Callable[..., Made]], spec: str, others: Iterable[str] = ()) -> Made:
    """The policy that a spec names.

    Args:
        kind: what it is called in errors, as `dispatch policy`.
        table: names, and who makes the policy from keyword options.
        spec: a name of `table`, then options as key=value.
        others: names that an error lists too.

    Raises:
        InputError: there is none of that name, or it does not take these options; one line.
    """
    name, *pairs = spec.split(",")
    if name not in table:
        raise InputError(f"{kind}: {not_one_of(name, (*table, *others))}")
    return make_with(f"{kind} '{spec}'", name, table[name], pairs)


def make_with(label: str, name: str, factory: Callable[..., Made], pairs: Iterable[str], seed: int | None = None) -> Made:
    """What a factory makes of options.

    Args:
        label: what errors begin with. name: of what is made, in errors.
        pairs: options as key=value: JSON, else text.
        seed: a number for the option `seed`, where the factory has it and no pair gives it.

    Raises:
        InputError: a pair is none, or is given twice, or the factory does not take it; one line.
    """
    known = _parameters(factory)
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier() or key in options:
            raise InputError(f"{label}: '{pair}' is not an option of the form key=value, given once")
        if key not in known:
            has = ", ".join(sorted(known)) or "none"
            raise InputError(f"{label}: {name} has no option '{key}'; it has {has}{did_you_mean(key, known)}")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    if seed is not None and "seed" in known:
        options.setdefault("seed", seed)
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: {error}") from None


def _parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return ()
