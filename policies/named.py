"""Creation of policies by name, with options as in `round-robin,migrate=0.8`."""

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
SWITCHES = "switches="  # option of all placement policies: plan warm starts and the cost of joining a group
LEND = "lend="  # option of all placement policies: let a group's training nodes sample while they have nothing to train


LEARNED = "learned:"  # prefix of the path of a policy file, or of `default`
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
        kind: Kind of policy for error messages, such as `dispatch policy`.
        table: Factories by name. They take keyword options.
        spec: A name in `table`, `learned:PATH`, `learned:default`, or `module:Class` of the user's own, followed by options as
            `key=value`, separated by commas.
        learned: Function that imports the factory of learned policies, which takes a path. None if this kind has none.
        methods: Methods that a policy of this kind must have.

    Raises:
        InputError: The name or an option is unknown, the policy file is invalid, or the class lacks a method.
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
    """Return whether a spec names a `module:Class` of the user's own."""
    name = spec.partition(",")[0]
    return ":" in name and not name.startswith(LEARNED)


def own_factory(label: str, target: str) -> Callable[..., Any]:
    """Import the class that `module:Class` names.

    Args:
        label: Start of error messages.
        target: The text `module:Class`. The module is looked up on Python's path and last in the working directory.

    Raises:
        InputError: There is no such module or class, or the module cannot be imported.
    """
    module_name, _, attribute = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a user's folder never hides an installed module
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
    """Call a factory with options given as text.

    Args:
        label: Start of error messages.
        name: Name of the policy in error messages.
        factory: Class or function that takes the options as keyword arguments.
        pairs: Options as `key=value`. A value is parsed as JSON if possible, else taken as text.
        seed: Value of the option `seed` if the factory has one and no pair sets it, or None.
        others: Names of options that the caller has read itself, to list in error messages.

    Raises:
        InputError: A pair is malformed, repeated, or not accepted by the factory.
    """
    known = parameters(factory)
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
    """Return the value of the option `switches` in a policy spec, or None if it is not given."""
    return said_of(spec, SWITCHES)


def said_of(spec: str, option: str) -> bool | None:
    """Return the value of a boolean option in a policy spec, or None if it is not given.

    Args:
        spec: Policy name with options.
        option: Option that all placement policies have, given with its equals sign as `name=`.

    Raises:
        InputError: The value is neither true nor false, or the option is given twice.
    """
    name = option.rstrip("=")
    values = [pair.removeprefix(option) for pair in spec.split(",")[1:] if pair.startswith(option)]
    if len(values) > 1:
        raise InputError(f"--policy {spec}: '{name}' is set twice")
    if values and values[0] not in ("true", "false"):
        raise InputError(f"--policy {spec}: {name}: must be true or false, not {values[0]}")
    return values[0] == "true" if values else None


def parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the options that a factory takes."""
    try:
        return tuple(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return ()
