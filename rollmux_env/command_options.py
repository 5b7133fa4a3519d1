"""Options of commands: the fields of a dataclass, and options of the form key=value.

Examples of the latter are `--set stays=fixed` and `--policy rollmux,prune=false`.
"""

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
    """Return a decorator that makes a function a command with the options of a dataclass.

    The fields are annotated like Typer's parameters. The function is called with an instance of the dataclass.

    Args:
        options: Dataclass with a field per option.
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
        label: Start of error messages.
        pairs: Texts such as `jobs=40`; a key may have parts, as in `ppo.n_steps=256`.
        form: Form of a pair, for error messages.

    Returns:
        Key and text of each pair.

    Raises:
        InputError: If a pair has another form, or a key is given twice.
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
    """Parse a text as JSON, or return the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
