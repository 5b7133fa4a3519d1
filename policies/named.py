"""Creation of policies by name, with options as in `round-robin,migrate=0.8`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from rollmux_env.errors import InputError
from rollmux_env.factories import make_with, own_object
from rollmux_env.validation_errors import not_one_of

Made = TypeVar("Made")
SWITCHES = "switches="  # option of all placement policies: plan warm starts and the cost of joining a group
LEND = "lend="  # option of all placement policies: let a group's training nodes sample while they have nothing to train
PIPE = "pipe="  # option of all placement policies: let training nodes take complete groups of responses during the rollout


LEARNED = "learned:"  # prefix of the path of a policy file, or of `default`
SHIPPED_NAMES = ("default", "random")  # in place of that path: placement networks of the package
SEARCH = "search:"  # prefix of a policy around which to search
OWN = ", or module:Class of your own"


def make_named(
    kind: str,
    table: Mapping[str, Callable[..., Made]],
    spec: str,
    learned: str | None = None,
    methods: Sequence[str] = (),
) -> Made:
    """Create the policy that a spec names.

    Args:
        kind: Kind of policy for error messages, such as `dispatch policy`.
        table: Factories by name. They take keyword options.
        spec: A name in `table`, `learned:PATH`, `learned:default`, or `module:Class` of the user's own, followed by options as
            `key=value`, separated by commas.
        learned: Factory of learned policies as `module:Class`, which takes a path, or None if this kind has none.
        methods: Methods that a policy of this kind must have.

    Raises:
        InputError: The name or an option is unknown, the policy file is invalid, or the class lacks a method.
    """
    name, *pairs = spec.split(",")
    label = f"{kind} '{spec}'"
    if learned is not None and name.startswith(LEARNED):
        network: Callable[..., Made] = own_object(label, learned)
        return make_with(label, LEARNED, partial(network, name.removeprefix(LEARNED)), pairs)
    if is_own(name):
        own: Callable[..., Made] = own_object(label, name)
        made = make_with(label, name, own, pairs)
        if lacking := [method for method in methods if not callable(getattr(made, method, None))]:
            raise InputError(f"{label}: {name} has no method `{lacking[0]}`")
        return made
    if name not in table:
        others = () if learned is None else (f"{LEARNED}default", f"{LEARNED}PATH")
        raise InputError(f"{kind}: {not_one_of(name, (*table, *others), OWN)}")
    return make_with(label, name, table[name], pairs)


def is_own(spec: str) -> bool:
    """Return whether a spec names a `module:Class` of the user's own."""
    name = spec.partition(",")[0]
    return ":" in name and not name.startswith((LEARNED, SEARCH))


def with_absolute_path(spec: str) -> str:
    """Return the spec of a policy with the absolute path of its policy file, if it names one."""
    name, *pairs = spec.split(",")
    before, prefix, path = name.partition(LEARNED)
    if not prefix or before not in ("", SEARCH) or path in SHIPPED_NAMES:
        return spec
    absolute = os.path.abspath(path)
    return spec if "," in absolute else ",".join([f"{before}{LEARNED}{absolute}", *pairs])  # a comma ends a path in a spec


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
