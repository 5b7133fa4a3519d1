"""Prompts from a JSONL file: an object a line, with `prompt` and `answer`, both text, and whatever a reward function wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.files import text_lines
from rollmux_env.validation_errors import describe, one_line
from runtime.jobs.tasks import Example, generator

Reward = Callable[[dict[str, Any], str], float]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSONL file; empty lines do not count.

    Raises:
        InputError: unreadable, a line is no object or has no prompt, or there is none; one line.
    """
    name = one_line(str(path), 4096)
    records = []
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            raise InputError(f"{name}: line {number}: is not JSON") from None
        except ValueError as error:  # Python's limit on digits
            raise InputError(f"{name}: line {number}: is not JSON that can be read: {one_line(str(error))}") from None
        if not isinstance(record, dict):
            raise InputError(f"{name}: line {number}: must be a mapping, not {describe(record)}")
        for key in ("prompt", "answer"):
            value = record.get(key, "" if key == "answer" else None)
            if not isinstance(value, str) or (key == "prompt" and not value):
                raise InputError(f"{name}: line {number}: {key}: must be text, not {describe(value)}")
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise InputError(f"{name}: line {number}: {key}: holds half a character (a lone surrogate)")
        records.append(record)
    if not records:
        raise InputError(f"{name}: holds no prompts")
    return records


class JsonlTask:
    """Every line once, in an order drawn from the seed, then every line again in another."""

    def __init__(self, records: list[dict[str, Any]], reward: Reward | None, seed: int) -> None:
        self._records = records
        self._reward = reward
        self._seed = seed

    def prompts(self, count: int, position: int) -> list[Example]:
        """Examples number `position` and on."""
        examples = []
        size = len(self._records)
        epoch, order = -1, []
        for number in range(position, position + count):
            if number // size != epoch:
                epoch = number // size
                order = generator(self._seed, "jsonl", epoch).permutation(size).tolist()
            record = self._records[order[number % size]]
            examples.append(Example(record["prompt"], record.get("answer", ""), record))
        return examples

    def reward(self, example: Example, response: str) -> float:
        """What the user's function says, or 1 for the answer itself, but for white space around it."""
        if self._reward is not None:
            return self._reward(dict(example.record), response)
        return float(response.strip() == example.answer.strip())
