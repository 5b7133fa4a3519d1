"""The task of a job: a built-in one, the lines of a JSONL file, or a class of the user."""

from __future__ import annotations

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, one_line
from runtime.jobs.grpo_spec import TaskSpec
from runtime.jobs.jsonl import JsonlTask, read_examples
from runtime.jobs.named import load_named
from runtime.jobs.tasks import BUILT_IN, GrpoTask, Reward, TaskExample, is_answer
from runtime.jobs.verifiers import VERIFIERS


def make_task(spec: TaskSpec, seed: int, folder: str = "", reads: bool = True) -> GrpoTask:
    """Make the task of a job.

    Args:
        spec: Keys of the task in the job file.
        seed: Seed of the order of the data.
        folder: Folder in which its file and modules are looked for.
        reads: Whether the task's file is read, if it has one. Without its file, the task can only compute rewards.

    Raises:
        InputError: If a file, a module or the user's class cannot be used; one line.
    """
    if spec.name in BUILT_IN:
        return BUILT_IN[spec.name](seed)
    if spec.name == "jsonl":
        return JsonlTask(read_examples(spec, folder) if reads else [], seed, _reward(spec, folder))
    task_class = load_named(spec.name, folder)
    try:
        task: GrpoTask = task_class(seed=seed, **spec.options)
    except Exception as error:  # whatever a user's class raises
        raise InputError(f"{spec.name}: {one_line(f'{type(error).__name__}: {error}')}") from None
    for method in ("prompts", "reward"):
        if not callable(getattr(task, method, None)):
            raise InputError(f"{spec.name}: has no method {method}")
    try:
        first = task.prompts(1, 0)
    except Exception as error:  # whatever a user's class raises
        raise InputError(f"{spec.name}: prompts(1, 0) fails: {one_line(f'{type(error).__name__}: {error}')}") from None
    if not (isinstance(first, list | tuple) and len(first) == 1 and isinstance(first[0], TaskExample)):
        raise InputError(f"{spec.name}: prompts(1, 0) gives {describe(first)}, not a list of one TaskExample")
    return task


def _reward(spec: TaskSpec, folder: str) -> Reward:
    """Return the function that computes the reward of a response to a line of a JSONL file."""
    if spec.reward is None:
        return is_answer
    if spec.reward in VERIFIERS:
        verifier = VERIFIERS[spec.reward]
        return lambda example, response: verifier(example.answer, response)
    function = load_named(spec.reward, folder)
    if not callable(function):
        raise InputError(f"{spec.reward}: is no function, but {describe(function)}")
    return lambda example, response: function(dict(example.record), response)
