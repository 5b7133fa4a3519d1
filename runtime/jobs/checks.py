"""Whether what a job file names is there: before anything starts, and without importing what is heavy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollmux_env.errors import InputError
from runtime.jobs.named import find_module
from runtime.jobs.spec import TINY, JobSpec


def check_names(job: JobSpec, where: str) -> None:
    """Look for the model's directory, the task's file, and modules.

    Args:
        where: the file and the path of the job, which error messages begin with.

    Raises:
        InputError: one of them is missing or malformed; one line.
    """
    with _at(f"{where}.class"):
        if job.job_class is not None:
            find_module(job.job_class, job.folder)
    if job.task is None:
        return
    with _at(f"{where}.model"):
        if job.model.name != TINY:
            from runtime.jobs.models import local_directory

            local_directory(job.path(job.model.name))
    with _at(f"{where}.task"):
        for named in (job.task.name if ":" in job.task.name else None, job.task.reward):
            if named is not None:
                find_module(named, job.folder)
        if job.task.file is not None:
            from runtime.jobs.jsonl import read_lines

            read_lines(job.path(job.task.file))


@contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
