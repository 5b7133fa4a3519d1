"""Options of commands: of one with many of them, the fields of a dataclass; and those of the form key=value, as in
`--set stays=fixed` and `--policy rollmux,prune=false`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

from rollmux_env.errors import InputError

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a function a command with the options of a dataclass, whose fields are annotated as Typer's parameters are.

    Args:
        options: the dataclass; an instance of it is what the function gets.
    """

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        hints = get_type_hints(options, include_extras=True)
        parameters = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options)  # type: ignore[arg-type]
        ]

        @wraps(command)
        def run(**values: Any) -> None:
            command(options(**values))

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = hints
        return run

    return decorate


def parse_pairs(label: str, pairs: Iterable[str], form: str = "key=value") -> list[tuple[str, str]]:
    """Split pairs at their first `=`.

    Args:
        label: start of error messages. pairs: texts such as `jobs=40`; a key may have parts, as in `ppo.n_steps=256`.
        form: of a pair, in error messages.

    Returns:
        Key and text of each.

    Raises:
        InputError: a pair has another form, or a key is given twice; one line.
    """
    items: list[tuple[str, str]] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError(f"{label}: '{pair}' is not of the form {form}")
        if key in dict(items):
            raise InputError(f"{label} {key}: is given twice")
        items.append((key, text))
    return items


def parse_value(text: str) -> Any:
    """The value that a text stands for: that of JSON, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
