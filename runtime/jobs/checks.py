"""Checks that the files and modules named in a job file exist, before anything starts and without heavy imports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policies.named import is_own
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.jobs.grpo_spec import TINY, TaskSpec
from runtime.jobs.jsonl import read_examples
from runtime.jobs.models import TINY_CONTEXT, has_chat_template, local_directory
from runtime.jobs.named import find_module
from runtime.jobs.spec import ClassJob, JobSpec, TaskJob
from runtime.jobs.verifiers import check_installed


def check_names(job: JobSpec, where: str) -> None:
    """Check that folders, the model, the task's file and modules of a job exist, and that responses fit into the model's context.

    Args:
        job: The job.
        where: Path of the file and of the job in it, with which error messages begin.

    Raises:
        InputError: If one is missing or malformed; one line.
    """
    with _at(f"{where}.folder"):
        if not Path(job.folder).is_dir():
            raise InputError(f"{one_line(job.folder, 4096)}: there is no such folder")
    if isinstance(job, ClassJob):
        with _at(f"{where}.class"):
            find_module(job.job_class, job.folder)
    if isinstance(job, TaskJob):
        _check_task_job(job, where)


def _check_task_job(job: TaskJob, where: str) -> None:
    with _at(f"{where}.rollout.policy"):
        if is_own(job.rollout.policy):
            find_module(job.rollout.policy, job.folder)
    with _at(f"{where}.model"):
        longest = _context(job)
    with _at(f"{where}.algorithm"):
        tokens = job.algorithm.max_prompt_tokens + job.algorithm.max_tokens
        if tokens > longest:
            raise InputError(f"max_prompt_tokens and max_tokens are {tokens} together; the model attends to {longest}")
    with _at(f"{where}.task"):
        for target in (job.task.name, job.task.reward):
            if target is not None and ":" in target:
                find_module(target, job.folder)
        if job.task.reward is not None:
            check_installed(job.task.reward)
        if job.task.name == "jsonl":
            _check_prompts(job, job.task)
    with _at(f"{where}.evaluation"):
        if job.evaluation is not None:
            _check_prompts(job, job.task.model_copy(update={"file": job.evaluation.file}))


def _check_prompts(job: TaskJob, task: TaskSpec) -> None:
    examples = read_examples(task, job.folder)
    if any(example.messages for example in examples):
        if job.model.name == TINY:
            raise InputError("messages need a chat template, which the model tiny has not")
        if not has_chat_template(local_directory(job.path(job.model.name))):
            raise InputError(f"messages need a chat template; {one_line(job.model.name, 4096)} has none")


def _context(job: TaskJob) -> int:
    """Return the number of tokens of the model's context."""
    if job.model.name == TINY:
        return TINY_CONTEXT
    from runtime.engines.model_files import read_model_files

    return read_model_files(local_directory(job.path(job.model.name))).longest


@contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except OSError as error:  # a folder that this user may not enter, or a name that is too long
        raise InputError(f"{where}: {one_line(str(error.filename), 4096)}: {error.strerror}") from None
