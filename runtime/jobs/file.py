"""Job files, version 1: the jobs that `rollmux run` executes and `rollmux submit` submits.

A file is YAML (1.2 rules) or JSON; docs/reference/jobs.md explains every key. `defaults` are merged under every job that has the
key, as in scenario files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, Version
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import SIDES, Cluster
from rollmux_env.keys.every_job import check_jobs
from rollmux_env.reading import checked, has_key, merge_defaults, read_mapping
from rollmux_env.scenario import parse_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import field_error, format_error, one_line, path_of, problems
from runtime.jobs.checks import check_names
from runtime.jobs.named import located
from runtime.jobs.spec import KINDS, NO_POOL, JobSpec, for_its_kind

_CLUSTER_KEYS = ("version", "cluster", "hosts", "defaults", "jobs")  # it may be a job file
_SCENARIO = "is a scenario file (no job has a task, class, attach or command): `rollmux bench` reads it"
_MAYBE_SCENARIO = " (if it is a scenario file, `rollmux bench` reads it)"


class JobFile(FileModel):
    """A job file."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster | None = None
    """The two pools, as in scenario files; without it what the runtime finds."""
    jobs: Annotated[tuple[JobSpec, ...], Field(strict=False, min_length=1)]
    """The jobs."""

    @model_validator(mode="after")
    def _fits(self) -> JobFile:
        if self.cluster is not None and (other := _other_pool(self.cluster)):
            raise field_error(NO_POOL, "cluster", "pools", other)
        check_jobs(self.jobs, self.cluster)
        return self


def load_jobs(path: str | Path) -> JobFile:
    """Read a job file.

    Args:
        path: Path of the file: `.json` is read as JSON, any other as YAML 1.2. If there is none, name of an example.

    Raises:
        InputError: It cannot be read or is no job file, or a file or model that a job names is missing; one line.
    """
    file = find_file(path)
    jobs = parse_jobs(read_mapping(file), str(path), file.resolve().parent)
    for k, job in enumerate(jobs.jobs):
        check_names(job, f"{one_line(str(path), 4096)}: jobs[{k}]")
    return jobs


def parse_jobs(data: dict[str, Any], source: str, folder: Path) -> JobFile:
    """Build jobs from the mapping that a file holds.

    Args:
        data: Mapping of the file.
        source: Name that error messages begin with.
        folder: Folder of jobs that name none.

    Raises:
        InputError: One line with the source, the path of the field and what is wrong with its value.
    """
    has_no_kind = bool(data.get("jobs")) and not any(has_key(data, kind) for kind in KINDS)
    other = _SCENARIO if has_no_kind and _is_scenario(data, folder) else ""
    hint = _MAYBE_SCENARIO if has_no_kind else ""
    jobs = checked(JobFile, data, source, lambda mapping: merge_defaults(mapping, for_its_kind), other, hint)
    here = [job.model_copy(update={"folder": os.path.abspath(located(folder, job.folder))}) for job in jobs.jobs]
    return jobs.model_copy(update={"jobs": tuple(here)})


def _is_scenario(data: dict[str, Any], folder: Path) -> bool:
    try:
        parse_scenario(data, folder=folder)
    except InputError:
        return False
    return True


def load_cluster(path: str | Path) -> Cluster:
    """Return the `cluster` of a file, which may be a job file or hold nothing else.

    Raises:
        InputError: it cannot be read, has none, or has a key that no such file has; one line.
    """
    name, data = one_line(str(path), 4096), read_mapping(find_file(path))
    if (other := next((key for key in data if key not in _CLUSTER_KEYS), None)) is not None:
        raise InputError(f"{name}: {path_of([other])}: is not a key of this file format{did_you_mean(other, _CLUSTER_KEYS)}")
    if "cluster" not in data:
        raise InputError(f"{name}: cluster: is missing")
    try:
        cluster = Cluster.model_validate(data["cluster"])
    except ValidationError as error:
        raise InputError(f"{name}: {one_line(format_error(problems(error)[0], Cluster, 'cluster'))}") from None
    if other := _other_pool(cluster):
        raise InputError(f"{name}: cluster.pools.{other}: {NO_POOL}")
    return cluster


def _other_pool(cluster: Cluster) -> str | None:
    """Return the first pool of a cluster that real runs do not know, or None."""
    return next((name for name in cluster.pools if name not in SIDES), None)
