"""One-line messages about errors in a file, in terms of the file's own keys."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from rollmux_env.suggestions import did_you_mean, meant_keys

_brief = reprlib.Repr()
_brief.maxstring, _brief.maxother = 40, 40

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,40}")

# Messages for pydantic's types of errors: the whole problem, or what was expected, with fields of the error's context in braces.
_PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is not a key of this file format",
    "unexpected_keyword_argument": "is not a key of this file format",
    "invalid_key": "is not a key of this file format",
    "string_unicode": "holds half a character (a lone surrogate)",
    "too_short": "is empty",
}
_EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text",
    "string_pattern_mismatch": "text of the form '{pattern}'",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "above {gt:.10g}",
    "greater_than_equal": "at least {ge:.10g}",
    "less_than": "below {lt:.10g}",
    "less_than_equal": "at most {le:.10g}",
    "literal_error": "{expected}",
}


def printable(text: str, keeps: str = "\t") -> str:
    """Return the text with its control characters, and those that change the writing direction, escaped.

    Args:
        text: Text of another user, to be shown on a terminal.
        keeps: Control characters that stay.
    """
    return "".join(c if c.isprintable() or c in keeps else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """Return the text on one line of printable characters, cut to `limit` characters."""
    text = printable(text[: limit + 1], keeps="")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe(value: Any) -> str:
    """Return a value of a file in a few printable characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**24:
        return "a number of over 24 digits"
    return one_line(_brief.repr(value))


def not_one_of(value: Any, names: Iterable[str], others: str = "") -> str:
    """Return the message that a value is none of some names, with a suggestion.

    Args:
        value: Invalid value.
        names: Valid names.
        others: Other valid values, such as `, or a file`.
    """
    known = [*names]
    return f"must be one of {', '.join(known)}{others}, not {describe(value)}{did_you_mean(value, known)}"


def path_of(parts: Iterable[str | int]) -> str:
    """Return the path of a field as users write it, such as `jobs[3].rollout.worst_case_s`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if isinstance(part, str) and _PLAIN_KEY.fullmatch(part) else f".{describe(part)}"
    return text.removeprefix(".")


def field_error(problem: str, *field: str | int) -> PydanticCustomError:
    """Return the error of a validator about a field below the validator's place."""
    return PydanticCustomError("field_error", "{problem}", {"problem": problem, "field": field})


def problems(error: ValidationError) -> list[ErrorDetails]:
    """Return pydantic's errors, unknown keys first, since a mistyped key also explains the key that is missing."""
    unknown = "extra_forbidden", "unexpected_keyword_argument"
    return sorted(error.errors(include_url=False), key=lambda problem: problem["type"] not in unknown)


def field_of(problem: ErrorDetails) -> tuple[str | int, ...]:
    """Return the keys and indices that lead to the field of one of pydantic's errors."""
    return (*(part for part in problem["loc"] if part != "[key]"), *problem.get("ctx", {}).get("field", ()))


def format_error(problem: ErrorDetails, model: type[BaseModel] | None, *prefix: str | int) -> str:
    """Return one of pydantic's errors as `path.to[0].field: problem`, with a suggestion.

    Args:
        problem: Error of pydantic.
        model: Model that did not fit, or None if it is not a mapping.
        prefix: Path of the model's place in the file.
    """
    context: dict[str, Any] = problem.get("ctx", {})
    field, kind = field_of(problem), problem["type"]
    text = _PROBLEMS.get(kind) or problem["msg"].removeprefix("Value error, ")
    if kind in _EXPECTED:
        expected = _EXPECTED[kind].format_map(context)
        text = f"must be {expected}, not {describe(problem['input'])}"
        if problem["input"] is None:
            text = f"has no value (null); it must be {expected}"
    if kind == "extra_forbidden" and model is not None:
        places = [path_of([*prefix, *place]) for place in meant_keys(model, field)]
        text += f"; did you mean {' or '.join(places)}?" if places else ""
    if kind == "literal_error":
        text += did_you_mean(problem["input"], re.findall("'(.*?)'", context["expected"]))
    return f"{path_of([*prefix, *field])}: {text}".removeprefix(": ")
