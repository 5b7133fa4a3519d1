"""A job's prompts as an engine takes them: examples of its task with their tokens, and those of its evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rollmux_env.errors import InputError
from runtime.grpo.rewards import Rewards
from runtime.jobs.jsonl import Lines, read_examples
from runtime.jobs.models import prompt_tokens
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import BUILT_IN, Example, Task


class Prompt(NamedTuple):
    """An example, and the tokens of its prompt."""

    example: Example
    tokens: tuple[int, ...]


class Prompts:
    """The prompts of a job. Lines of a file that are too long are left out, which the job's log says.

    Args:
        tokenizer: of transformers. rewards: where the examples of a class of the user's own are made.

    Attributes:
        held_out: those of the evaluation, the same whenever they are read.

    Raises:
        InputError: a file cannot be used, or all of its prompts are too long; one line.
    """

    def __init__(self, spec: JobSpec, tokenizer: Any, rewards: Rewards) -> None:
        assert spec.task is not None
        self._tokenizer, self._most, self._name = tokenizer, spec.algorithm.max_prompt_tokens, spec.task.name
        self._source: Task | Rewards = rewards
        if spec.task.name in BUILT_IN:
            self._source = BUILT_IN[spec.task.name](spec.seed)
        elif spec.task.name == "jsonl":
            lines = self._short_enough(read_examples(spec.task, spec.folder), spec.task.file)
            self._source = Lines([prompt.example for prompt in lines], spec.seed)
        self.held_out: tuple[Prompt, ...] = ()
        if spec.evaluation is not None:
            task = spec.task.model_copy(update={"file": spec.evaluation.file})
            lines = self._short_enough(read_examples(task, spec.folder), task.file)
            self.held_out = tuple(lines[: spec.evaluation.prompts])

    def numbered(self, numbers: Collection[int]) -> dict[int, Prompt]:
        """Prompts by their numbers.

        Raises:
            RuntimeError: the task gives not as many examples as asked for, or a prompt is too long.
        """
        prompts: dict[int, Prompt] = {}
        for _, together in groupby(enumerate(sorted(numbers)), key=lambda one: one[1] - one[0]):
            run = [number for _, number in together]  # one after the other
            first, count = run[0], len(run)
            examples = self._source.prompts(count, first)
            if len(examples) != count:
                raise RuntimeError(f"{self._name}: prompts({count}, {first}) gives {len(examples)} of {count} examples")
            prompts |= {first + k: self._prompt(example) for k, example in enumerate(examples)}
        for prompt in prompts.values():
            if len(prompt.tokens) > self._most:
                raise RuntimeError(f"a prompt has {len(prompt.tokens)} tokens; max_prompt_tokens is {self._most}")
        return prompts

    def _prompt(self, example: Example) -> Prompt:
        return Prompt(example, prompt_tokens(self._tokenizer, example))

    def _short_enough(self, examples: Sequence[Example], file: str | None) -> list[Prompt]:
        prompts = [self._prompt(example) for example in examples]
        fitting = [prompt for prompt in prompts if len(prompt.tokens) <= self._most]
        if not fitting:
            raise InputError(f"{file}: all of the {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}")
        if left_out := len(prompts) - len(fitting):
            print(f"{file}: {left_out} of {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}: left out")
        return fitting
