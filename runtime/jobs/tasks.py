"""Tasks: where prompts come from, and what a response is worth.

Three are built in, all verifiable and all such that the newborn model `tiny` already earns a little, so that there is something to
climb. Examples are numbered, and a number always stands for the same example: data is a position that counts, and a job that
resumes goes on with exactly the examples that it would have seen.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rollmux_env.validation_errors import describe, one_line


@dataclass(frozen=True)
class Example:
    """A prompt.

    Attributes:
        prompt: its text.
        answer: what a right response holds, where the task has one.
        record: the line of a JSONL file.
        messages: what the model's chat template makes the prompt of, each with `role` and `content`; none: the prompt is as it is.
        where: the line of a file that it comes from, for errors.
    """

    prompt: str
    answer: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    where: str = ""


class Task(Protocol):
    """What a class of one's own has to have; it is made with `seed` and its `options` as keyword arguments."""

    def prompts(self, count: int, position: int) -> list[Example]:
        """Examples number `position`, `position` + 1, ...; the same number is always the same example."""
        ...

    def reward(self, example: Example, response: str) -> float:
        """What a response, without its end token, is worth: a finite number."""
        ...


Reward = Callable[[Example, str], float]


def generator(seed: int, name: str, number: int) -> np.random.Generator:
    """The random numbers of one example."""
    digest = hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class _Numbered:
    """A task each of whose examples is drawn from the seed and its own number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def prompts(self, count: int, position: int) -> list[Example]:
        """Examples number `position` and on."""
        return [self._example(number) for number in range(position, position + count)]

    def _example(self, number: int) -> Example:
        raise NotImplementedError


class Echo(_Numbered):
    """The prompt is a digit from 0 to 3, eight times, and each of the first 32 characters that are the same digit earns 1/32."""

    LENGTH = 32

    def _example(self, number: int) -> Example:
        digit = str(generator(self._seed, "echo", number).integers(4))
        return Example(f"{digit * 8}=", digit * self.LENGTH)

    def reward(self, example: Example, response: str) -> float:
        """Share of the first 32 characters that are right; what is missing is wrong."""
        return response[: self.LENGTH].count(example.prompt[0]) / self.LENGTH


class Count(_Numbered):
    """The prompt is a digit, and each of the first 32 characters that counts on (3 after 2, 0 after 9) earns 1/32."""

    LENGTH = 32

    def _example(self, number: int) -> Example:
        digit = int(generator(self._seed, "count", number).integers(10))
        return Example(str(digit), "".join(str((digit + k) % 10) for k in range(1, 1 + self.LENGTH)))

    def reward(self, example: Example, response: str) -> float:
        """Share of the first 32 characters that follow the one before them; what is missing is wrong."""
        text = example.prompt + response[: self.LENGTH]
        return sum(pair in self._PAIRS for pair in map("".join, itertools.pairwise(text))) / self.LENGTH

    _PAIRS = frozenset(f"{digit}{(digit + 1) % 10}" for digit in range(10))


class LongTail(_Numbered):
    """The prompt ends in a capital, A to E, and the share of the response that is the first letter of the capital's kind is earned.

    How long the newborn `tiny` goes on depends on the capital, from 8 characters to 648 on the average, and the shares of the
    capitals make a mixture with a heavy tail: half of the responses end within a dozen characters, one in forty passes 300. The
    reward is silent on length, so that it stays so while the model learns.
    """

    SHARES = (0.45, 0.30, 0.15, 0.07, 0.03)
    """Of prompts that end in A, B, C, D and E."""

    def _example(self, number: int) -> Example:
        kind = generator(self._seed, "long-tail", number).choice(5, p=self.SHARES)
        return Example(f"{number % 1000:03}{'ABCDE'[kind]}", "afkpu"[kind])

    def reward(self, example: Example, response: str) -> float:
        """Share of the response that is the answer's letter; 0 of an empty one."""
        return response.count(example.answer) / len(response) if response else 0.0


BUILT_IN: dict[str, Callable[[int], Task]] = {"echo": Echo, "count": Count, "long-tail": LongTail}
"""Built-in tasks, by name: what makes one from a seed."""


def is_answer(example: Example, response: str) -> float:
    """1 for the answer alone, else 0."""
    return float(response.strip() == example.answer.strip())


def score(task: Task, example: Example, response: str) -> float:
    """The reward of a response, checked.

    Raises:
        RuntimeError: the task's reward raised, or returned no finite number; one line that says for which response.
    """
    try:
        value = task.reward(example, response)
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception as error:  # whatever a user's function raises
        what = one_line(f"{type(error).__name__}: {error}")
        raise RuntimeError(f"{reward_of(example, response)} failed: {what}") from error
    if not math.isfinite(reward):
        raise RuntimeError(f"{reward_of(example, response)} is {describe(value)}, no finite number")
    return reward


def reward_of(example: Example, response: str) -> str:
    """Which reward is meant, as messages say it."""
    return f"the reward of {describe(response)} to the prompt {describe(example.prompt)}" + (
        f" ({example.where})" if example.where else ""
    )
