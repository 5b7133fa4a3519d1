"""Commands with many options: these are the fields of a dataclass, and the command takes one argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

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
