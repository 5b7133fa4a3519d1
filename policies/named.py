"""Parses a policy name with options, as in `round-robin,migrate=0.8`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError, lacks
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import described, is_interrupt, is_users, printing_to_stderr, seeded
from rollmux_env.validation_errors import not_one_of

Made = TypeVar("Made")
SWITCHES = "switches="  # an option of all placement policies: plan warm starts and what joining a group costs
LEND = "lend="  # another one: the training nodes of a group sample while they have nothing to train


LEARNED = "learned:"  # and the path of a policy file, or `default`
OWN = ", or module:Class of your own"


def make_named(
    kind: str,
    table: Mapping[str, Callable[..., Made]],
    spec: str,
    learned: Callable[[], Callable[..., Made]] | None = None,
    methods: Sequence[str] = (),
) -> Made:
    """Create the policy that a spec names.

    Args:
        kind: the kind of policy for error messages, such as `dispatch policy`.
        table: factories by name, which take keyword options.
        spec: a name of `table`, or `learned:` and the path of a policy file, or `learned:default`, or `module:Class` of the user's
            own; then options as key=value.
        learned: imports what makes the policy of a file, given its path; None where there is none of the kind.
        methods: those that a policy of this kind has.

    Raises:
        InputError: unknown name or options, an invalid policy file, or a class that is none of this kind; one line.
    """
    name, *pairs = spec.split(",")
    label = f"{kind} '{spec}'"
    if learned is not None and name.startswith(LEARNED):
        return make_with(label, LEARNED, partial(learned(), name.removeprefix(LEARNED)), pairs)
    if is_own(name):
        made = make_with(label, name, own_factory(label, name), pairs)
        if lacking := [method for method in methods if not callable(getattr(made, method, None))]:
            raise InputError(f"{label}: {name} has no method `{lacking[0]}`")
        return made  # type: ignore[no-any-return]
    if name not in table:
        others = () if learned is None else (f"{LEARNED}default", f"{LEARNED}PATH")
        raise InputError(f"{kind}: {not_one_of(name, (*table, *others), OWN)}")
    return make_with(label, name, table[name], pairs)


def is_own(spec: str) -> bool:
    """Whether a spec names a `module:Class` of the user's own."""
    name = spec.partition(",")[0]
    return ":" in name and not name.startswith(LEARNED)


def own_factory(label: str, target: str) -> Callable[..., Any]:
    """The class of the user's own that `module:Class` names.

    Args:
        label: start of error messages. target: its module is looked for where Python looks, and last in the working directory.

    Raises:
        InputError: no such module or class, or the module cannot be imported; one line.
    """
    module_name, _, attribute = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a user's folder never hides a module of ours
    try:
        with printing_to_stderr(), seeded(0):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise InputError(f"{label}: there is no module '{module_name}' on the path or in this folder") from None
        raise InputError(f"{label}: {module_name} {lacks(error.name or module_name)}") from None
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise InputError(f"{label}: cannot import {module_name}: {described(error)}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise InputError(f"{label}: {module.__file__ or module_name} has no class '{attribute}'")
    return factory  # type: ignore[no-any-return]


def make_with(
    label: str, name: str, factory: Callable[..., Made], pairs: Iterable[str], seed: int | None = None, others: Iterable[str] = ()
) -> Made:
    """Call a factory with options.

    Args:
        label: start of error messages. name: name of the policy in error messages.
        pairs: options as key=value, with values as JSON or else text.
        seed: value of the option `seed`, if the factory has it and no pair sets it.
        others: options that the caller has read itself, for error messages.

    Raises:
        InputError: a pair is malformed, repeated, or not accepted by the factory; one line.
    """
    known = _parameters(factory)
    options: dict[str, Any] = {}
    for key, text in parse_pairs(label, pairs):
        if key in options:
            raise InputError(f"{label}: '{key}' is set twice")
        options[key] = parse_value(text)
    for key in options:
        if key not in known:
            offered = sorted({*known, *others})
            raise InputError(
                f"{label}: {name} has no option '{key}'; it has {', '.join(offered) or 'none'}{did_you_mean(key, offered)}"
            )
    if seed is not None and "seed" in known:
        options.setdefault("seed", seed)
    try:
        with printing_to_stderr():
            return factory(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: {described(error) if is_users(factory) else error}") from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise InputError(f"{label}: {described(error)}") from error


def plans_switches(spec: str) -> bool | None:
    """What the option `switches` of a policy says, which all of them have; None where it is not there."""
    return said_of(spec, SWITCHES)


def said_of(spec: str, option: str) -> bool | None:
    """What an option that all placement policies have says, given as `name=`; None where it is not there.

    Raises:
        InputError: it is neither true nor false, or there twice; one line.
    """
    name = option.rstrip("=")
    values = [pair.removeprefix(option) for pair in spec.split(",")[1:] if pair.startswith(option)]
    if len(values) > 1:
        raise InputError(f"--policy {spec}: '{name}' is set twice")
    if values and values[0] not in ("true", "false"):
        raise InputError(f"--policy {spec}: {name}: must be true or false, not {values[0]}")
    return values[0] == "true" if values else None


def _parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return ()
