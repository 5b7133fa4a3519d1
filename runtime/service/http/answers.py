"""Answers: JSON, and errors with the status that goes with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from starlette.responses import Response

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.answers import Conflict, NotAllowed, NotFound, TooMany, Unprocessable
from runtime.journal.write import Unwritable

JSON = "application/json"
_TOGETHER = 100  # parts of a list
_LONGEST = 1000  # characters of an error
_STATUS: dict[type[InputError], int] = {
    NotAllowed: 403,
    NotFound: 404,
    Conflict: 409,
    Unprocessable: 422,
    TooMany: 429,
    Unwritable: 503,
}


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON; what is no finite number is null."""
    return Response(_text(value), status, media_type=JSON)


async def answer_in_steps(value: dict[str, Any], name: str) -> Response:
    """A mapping as JSON, of which one list is long: others have their turn meanwhile."""
    rest, parts = {key: part for key, part in value.items() if key != name}, []
    for first in range(0, len(value[name]), _TOGETHER):
        parts.append(_text(value[name][first : first + _TOGETHER])[1:-1])
        await asyncio.sleep(0)
    return Response(f'{_text(rest)[:-1]},"{name}":[{",".join(parts)}]}}', media_type=JSON)


def _text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, separators=(",", ":"))


def error(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """`{"error": "one line"}`."""
    return Response(json.dumps({"error": one_line(problem, _LONGEST)}), status, headers, JSON)


def refusal(refused: InputError) -> Response:
    """What a service has refused, by the kind of refusal; what has none is malformed."""
    status = next((status for kind, status in _STATUS.items() if isinstance(refused, kind)), 400)
    return error(status, str(refused), {"Retry-After": "1"} if status in (429, 503) else None)


def finite(value: Any) -> Any:
    """A value of JSON without numbers that JSON has not."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
