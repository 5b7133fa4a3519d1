"""Built-in jobs for tests, from entries of job files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import TaskJob


def task_job(entry: dict[str, Any], folder: Path = Path()) -> TaskJob:
    """Return the built-in job of an entry of a job file in a folder."""
    (job,) = parse_jobs({"version": 1, "jobs": [entry]}, "test", folder).jobs
    assert isinstance(job, TaskJob)
    return job
