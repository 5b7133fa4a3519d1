"""Parses options of the form key=value, as in `--set stays=fixed` and `--policy rollmux,prune=false`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rollmux_env.errors import InputError


def parse_pairs(label: str, pairs: Iterable[str], form: str = "key=value") -> list[tuple[str, str]]:
    """Split pairs at their first `=`.

    Args:
        label: start of error messages. pairs: texts such as `jobs=40`; a key may have parts, as in `ppo.n_steps=256`.
        form: of a pair, in error messages.

    Returns:
        Key and text of each. With `--set` the last one of a key counts, so that a script may append to a command.

    Raises:
        InputError: a pair has another form; one line.
    """
    items = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError(f"{label}: '{pair}' is not of the form {form}")
        items.append((key, text))
    return items


def parse_value(text: str) -> Any:
    """The value that a text stands for: that of JSON, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
