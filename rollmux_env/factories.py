"""Creation of objects from text: functions and classes of users as `module:name`, with options as in `name,key=value`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError, lacks
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import PACKAGES, described, is_interrupt, is_users, printing_to_stderr, seeded

Made = TypeVar("Made")


def own_object(label: str, target: str, kind: str = "class") -> Any:
    """Import what `module:name` names.

    Args:
        label: Start of error messages.
        target: The text `module:name`. The module is looked up on Python's path and last in the working directory.
        kind: Word for what is expected, in error messages.

    Raises:
        InputError: There is no such module or name, or the module cannot be imported.
    """
    module_name, _, attribute = target.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        named = f"{Path(module_name).stem}:{attribute}"
        raise InputError(
            f"{label}: a module has no folder and no .py, as in {named}; it is looked up on the path and in this folder"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a user's folder never hides an installed module
    try:
        module = sys.modules.get(module_name) if module_name.partition(".")[0] in PACKAGES else None
        if module is None:
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
    own = getattr(module, attribute, None)
    if not callable(own) and not hasattr(own, "scenario"):
        raise InputError(f"{label}: {module.__file__ or module_name} has no {kind} '{attribute}'")
    return own


def make_with(
    label: str, name: str, factory: Callable[..., Made], pairs: Iterable[str], seed: int | None = None, others: Iterable[str] = ()
) -> Made:
    """Call a factory with options given as text.

    Args:
        label: Start of error messages.
        name: Name of the object in error messages.
        factory: Class or function that takes the options as keyword arguments.
        pairs: Options as `key=value`.
        seed: Value of the option `seed` if the factory has one and no pair sets it, or None.
        others: Names of options that the caller has read itself, to list in error messages.

    Raises:
        InputError: A pair is malformed, repeated, or not accepted by the factory.
    """
    known = parameters(factory)
    options = read_options(label, name, known, pairs, others)
    if seed is not None and "seed" in known:
        options.setdefault("seed", seed)
    if missing := [key for key in _required(factory) if key not in options]:
        raise InputError(f"{label}: {name} needs the option '{missing[0]}', which has no default")
    try:
        with printing_to_stderr():
            return factory(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: {described(error) if is_users(factory) else error}") from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise InputError(f"{label}: {described(error)}") from error


def read_options(label: str, name: str, known: Iterable[str], pairs: Iterable[str], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return options by name. A value is parsed as JSON if possible, else taken as text.

    Args:
        label: Start of error messages.
        name: Name of what has the options, in error messages.
        known: Names of the options that there are.
        pairs: Options as `key=value`.
        others: Names of options that the caller has read itself, to list in error messages.

    Raises:
        InputError: A pair is malformed or repeated, or there is no such option.
    """
    options = {key: parse_value(text) for key, text in parse_pairs(label, pairs)}
    for key in options:
        if key not in known:
            offered = sorted({*known, *others})
            raise InputError(
                f"{label}: {name} has no option '{key}'; it has {', '.join(offered) or 'none'}{did_you_mean(key, offered)}"
            )
    return options


def parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the options that a factory takes."""
    return _parameters_of_class(factory) if isinstance(factory, type) else _read_parameters(factory)


@cache
def _parameters_of_class(factory: type) -> tuple[str, ...]:
    return _read_parameters(factory)


def _required(factory: Callable[..., Any]) -> list[str]:
    """Return the names of the options of a user's factory that have no default."""
    if not is_users(factory):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in _signature(factory) if one.default is one.empty and one.kind in named]


def _read_parameters(factory: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(one.name for one in _signature(factory))


def _signature(factory: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a factory; empty if it does not tell."""
    try:
        return tuple(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return ()
