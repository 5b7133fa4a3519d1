"""Tasks: sources of prompts, with the reward of a response.

Three are built in. All are verifiable, and the untrained model `tiny` already earns some reward in each. Examples are numbered, and
a number always means the same example: the state of the data is a position, and a resumed job continues with exactly the examples
that it would have had.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rollmux_env.validation_errors import describe, one_line


@dataclass(frozen=True)
class TaskExample:
    """A prompt.

    Attributes:
        prompt: Text of the prompt.
        answer: Content of a right response, if the task has one.
        record: Fields of the line of a JSONL file.
        messages: Messages with `role` and `content` to which the model's chat template is applied, or empty to use `prompt` as it
            is.
        where: File and line that the example comes from, for error messages.
    """

    prompt: str
    answer: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    where: str = ""


class GrpoTask(Protocol):
    """Interface of a user's task; it is made with `seed` and its `options` as keyword arguments."""

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return examples number `position` to `position + count - 1`; a number always means the same example."""
        ...

    def reward(self, example: TaskExample, response: str) -> float:
        """Return the reward of a response, without its end token: a finite number."""
        ...


Reward = Callable[[TaskExample, str], float]


def generator(seed: int, name: str, number: int) -> np.random.Generator:
    """Return a generator for the random numbers of one example."""
    digest = hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class _Numbered(ABC):
    """A task that draws each example from the seed and the example's number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def prompts(self, count: int, position: int) -> list[TaskExample]:
        """Return examples number `position` to `position + count - 1`."""
        return [self._example(number) for number in range(position, position + count)]

    @abstractmethod
    def _example(self, number: int) -> TaskExample: ...


class Echo(_Numbered):
    """A task whose prompt is a digit from 0 to 3, eight times. Each of the first 32 characters that equals it earns 1/32."""

    LENGTH = 32

    def _example(self, number: int) -> TaskExample:
        digit = str(generator(self._seed, "echo", number).integers(4))
        return TaskExample(f"{digit * 8}=", digit * self.LENGTH)

    def reward(self, example: TaskExample, response: str) -> float:
        """Return the share of the first 32 characters that are right; missing ones are wrong."""
        return response[: self.LENGTH].count(example.prompt[0]) / self.LENGTH


class Count(_Numbered):
    """A task whose prompt is a digit. Each of the first 32 characters that counts on (3 after 2, 0 after 9) earns 1/32."""

    LENGTH = 32

    def _example(self, number: int) -> TaskExample:
        digit = int(generator(self._seed, "count", number).integers(10))
        return TaskExample(str(digit), "".join(str((digit + k) % 10) for k in range(1, 1 + self.LENGTH)))

    def reward(self, example: TaskExample, response: str) -> float:
        """Return the share of the first 32 characters that follow the one before them; missing ones are wrong."""
        text = example.prompt + response[: self.LENGTH]
        return sum(pair in self._PAIRS for pair in map("".join, itertools.pairwise(text))) / self.LENGTH

    _PAIRS = frozenset(f"{digit}{(digit + 1) % 10}" for digit in range(10))


class LongTail(_Numbered):
    """A task whose prompt ends in a capital, A to E. The reward is the share of one letter in the response.

    The letter is the first one of the capital's kind. The response length of the untrained `tiny` depends on the capital, from 8
    characters to 648 on average. The shares of the capitals make a mixture with a heavy tail: half of the responses end within a
    dozen characters, and one in forty exceeds 300. The reward does not depend on length, so the tail remains while the model
    learns.
    """

    SHARES = (0.45, 0.30, 0.15, 0.07, 0.03)
    """Shares of prompts that end in A, B, C, D and E."""

    def _example(self, number: int) -> TaskExample:
        kind = generator(self._seed, "long-tail", number).choice(5, p=self.SHARES)
        return TaskExample(f"{number % 1000:03}{'ABCDE'[kind]}", "afkpu"[kind])

    def reward(self, example: TaskExample, response: str) -> float:
        """Return the share of the answer's letter in the response, or 0 for an empty one."""
        return response.count(example.answer) / len(response) if response else 0.0


BUILT_IN: dict[str, Callable[[int], GrpoTask]] = {"echo": Echo, "count": Count, "long-tail": LongTail}
"""Factories of built-in tasks from a seed, by name."""


def is_answer(example: TaskExample, response: str) -> float:
    """Return 1 if the response is the answer, else 0."""
    return float(response.strip() == example.answer.strip())


def score(task: GrpoTask, example: TaskExample, response: str) -> float:
    """Return the reward of a response after checking it.

    Args:
        task: The task.
        example: Example with the prompt.
        response: The response.

    Raises:
        RuntimeError: If the task's reward raised, or is not a finite number; one line that names the response.
    """
    try:
        value = task.reward(example, response)
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception as error:  # a user's function may raise anything
        what = one_line(f"{type(error).__name__}: {error}")
        raise RuntimeError(f"{reward_of(example, response)} failed: {what}") from error
    if not math.isfinite(reward):
        raise RuntimeError(f"{reward_of(example, response)} is {describe(value)}, no finite number")
    return reward


def reward_of(example: TaskExample, response: str) -> str:
    """Return the words for the reward of a response, for messages."""
    return f"the reward of {describe(response)} to the prompt {describe(example.prompt)}" + (
        f" ({example.where})" if example.where else ""
    )
