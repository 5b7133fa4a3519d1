"""Making the task that a job file names: a built-in one, lines of a JSONL file, or a class of the user's own."""

from __future__ import annotations

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, one_line
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.jsonl import Lines, read_examples
from runtime.jobs.named import load_named
from runtime.jobs.tasks import BUILT_IN, Example, Reward, Task, is_answer
from runtime.jobs.verifiers import VERIFIERS


def make_task(spec: TaskSpec, seed: int, folder: str = "", reads: bool = True) -> Task:
    """Make the task of a job.

    Args:
        spec: What the job file says of the task.
        seed: Seed of the order of the data.
        folder: Folder in which its file and modules are looked for.
        reads: Whether the task's file, if it has one, is read; without, the task is for rewards alone.

    Raises:
        InputError: A file, a module or a class of the user's own cannot be used; one line.
    """
    if spec.name in BUILT_IN:
        return BUILT_IN[spec.name](seed)
    if spec.name == "jsonl":
        return Lines(read_examples(spec, folder) if reads else [], seed, _reward(spec, folder))
    task_class = load_named(spec.name, folder)
    try:
        task: Task = task_class(seed=seed, **spec.options)
    except Exception as error:  # whatever a user's class raises
        raise InputError(f"{spec.name}: {one_line(f'{type(error).__name__}: {error}')}") from None
    for method in ("prompts", "reward"):
        if not callable(getattr(task, method, None)):
            raise InputError(f"{spec.name}: has no method {method}")
    try:
        first = task.prompts(1, 0)
    except Exception as error:  # whatever a user's class raises
        raise InputError(f"{spec.name}: prompts(1, 0) fails: {one_line(f'{type(error).__name__}: {error}')}") from None
    if not (isinstance(first, list | tuple) and len(first) == 1 and isinstance(first[0], Example)):
        raise InputError(f"{spec.name}: prompts(1, 0) gives {describe(first)}, not a list of one Example")
    return task


def _reward(spec: TaskSpec, folder: str) -> Reward:
    """What a response to a line of a JSONL file is worth."""
    if spec.reward is None:
        return is_answer
    if spec.reward in VERIFIERS:
        verifier = VERIFIERS[spec.reward]
        return lambda example, response: verifier(example.answer, response)
    function = load_named(spec.reward, folder)
    if not callable(function):
        raise InputError(f"{spec.reward}: is no function, but {describe(function)}")
    return lambda example, response: function(dict(example.record), response)
