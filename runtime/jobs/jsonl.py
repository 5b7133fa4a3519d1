"""Prompts from a JSONL file: an object per line, with a prompt, an answer, and fields for a reward function.

A prompt is text, or a conversation: messages with `role` and `content`, as in data sets for TRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.files import json_lines
from rollmux_env.validation_errors import describe, one_line
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.named import located
from runtime.jobs.tasks import Reward, TaskExample, generator, is_answer
from runtime.jobs.verifiers import VERIFIERS, final_number


def read_examples(spec: TaskSpec, folder: str) -> list[TaskExample]:
    """Return the examples of a task's file, in its order. Empty lines are skipped.

    Args:
        spec: The task.
        folder: Folder in which the file is looked for.

    Raises:
        InputError: If the file is unreadable or has no prompts, or a line is not an object or lacks a field; one line.
    """
    assert spec.file is not None
    path = located(folder, spec.file)
    name = one_line(str(path), 4096)
    examples = [_example(record, spec, f"{name}: line {number}") for number, record in json_lines(path)]
    if not examples:
        raise InputError(f"{name}: holds no prompts")
    return examples


def _example(record: dict[str, Any], spec: TaskSpec, where: str) -> TaskExample:
    prompt = _field(record, spec.prompt, where)
    before = ({"role": "system", "content": spec.system},) if spec.system is not None else ()
    if isinstance(prompt, list):
        messages = (*before, *_messages(prompt, _place(where, spec.prompt)))
        return TaskExample(messages[-1]["content"], _answer(record, spec, where), record, messages, where)
    prompt = _text(prompt, _place(where, spec.prompt))
    if not prompt.strip():
        raise InputError(f"{_place(where, spec.prompt)}: is empty")
    chat = (*before, {"role": "user", "content": prompt}) if spec.chat or before else ()
    return TaskExample(prompt, _answer(record, spec, where), record, chat, where)


def _answer(record: dict[str, Any], spec: TaskSpec, where: str) -> str:
    """Return the answer of a line. It may be missing if the reward is a user's function."""
    own = spec.reward is not None and spec.reward not in VERIFIERS
    answer = record.get(spec.answer, "") if own else _field(record, spec.answer, where)
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    text = _text(answer, _place(where, spec.answer))
    if spec.reward == "number" and final_number(text) is None:
        raise InputError(f"{_place(where, spec.answer)}: holds no number, which the reward is to compare with: {describe(text)}")
    return text


def _place(where: str, field: str) -> str:
    """Return the start of error messages about a field of a line, whose name may have any characters."""
    return f"{where}: {one_line(field)}"


def _field(record: dict[str, Any], name: str, where: str) -> Any:
    if name not in record:
        raise InputError(f"{_place(where, name)}: is missing; its fields are {one_line(', '.join(record), 300)}")
    return record[name]


def _messages(messages: Sequence[Any], where: str) -> Iterator[dict[str, str]]:
    if not messages:
        raise InputError(f"{where}: holds no messages")
    if all(isinstance(message, Mapping) and message.get("content") == "" for message in messages):
        raise InputError(f"{where}: holds empty messages alone")
    for k, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(f"{where}[{k}]: must be a mapping with role and content, not {describe(message)}")
        yield {key: _text(message.get(key), f"{where}[{k}].{key}") for key in ("role", "content")}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: must be text, not {describe(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where}: holds half a character (a lone surrogate)")
    return value


class JsonlTask:
    """A task with the lines of a file: every example once, in an order drawn from the seed, then again in another order.

    Args:
        examples: Examples in the order of the file.
        seed: Seed of the orders.
        reward: Function that returns the reward of a response to an example.
    """

    def __init__(self, examples: list[TaskExample], seed: int, reward: Reward = is_answer) -> None:
        self._examples, self._seed, self.reward = examples, seed, reward

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return examples number `position` to `position + count - 1`."""
        examples = []
        size = len(self._examples)
        epoch, order = -1, []
        for number in range(position, position + count):
            if number // size != epoch:
                epoch = number // size
                order = generator(self._seed, "jsonl", epoch).permutation(size).tolist()
            examples.append(self._examples[order[number % size]])
        return examples
