"""Scenario files, version 1: pools of nodes and the jobs that arrive, as validated and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/scenario.md explains every key. `load_scenario` merges `defaults` under every job
and returns a `Scenario`, from which everything else in RollMux starts. A job may give `model` and `lengths` instead of seconds and
gigabytes: `rollmux_env.timing.filling` then predicts the missing values. The texts below the fields are also the descriptions in
the JSON Schema of `rollmux_env.schema`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, Version
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.every_job import check_jobs
from rollmux_env.keys.job import STAYS, Job
from rollmux_env.keys.queue import OF_SERVICES
from rollmux_env.keys.unsupported import queue_key
from rollmux_env.reading import checked, has_key, merge_defaults, read_mapping
from rollmux_env.validation_errors import field_error, format_error, problems

_KINDS_OF_JOB_FILES = ("task", "attach", "command")  # a `class` is a label here


class Scenario(FileModel):
    """A placement problem: the cluster and the jobs, in the file's order."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster
    """The pools, and settings for all groups."""
    jobs: Annotated[tuple[Job, ...], Field(strict=False, min_length=1)]
    """The jobs that arrive."""

    def canonical_json(self) -> str:
        """Return the scenario as JSON with defaults filled in and keys sorted: the same text for the same problem."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))

    @property
    def queue_key(self) -> str | None:
        """Path of the first key among `quotas`, `priority`, `user` and `budget` that the file uses, or None."""
        return queue_key(self.cluster, self.jobs)

    @property
    def sha256(self) -> str:
        """SHA-256 of `canonical_json`, hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        for user, quota in self.cluster.quotas.items():
            if (key := next((key for key in OF_SERVICES if getattr(quota, key) is not None), None)) is not None:
                raise field_error("is a limit of a service (`rollmux serve`)", "cluster", "quotas", user, key)
        check_jobs(self.jobs, self.cluster)
        return self


def _check_defaults(defaults: dict[str, Any]) -> None:
    """Refuse errors in `defaults` itself, under its own path, even if every job overrides them.

    Missing keys and conflicts between fields are left to the merged jobs, since a job may resolve them.
    """
    try:
        Job.model_validate({**defaults, "id": "defaults"})
    except ValidationError as error:
        for problem in problems(error):
            in_list = any(isinstance(part, int) for part in problem["loc"])  # lists are not merged into
            if problem["type"] != "field_error" and (problem["type"] != "missing" or in_list):
                raise InputError(format_error(problem, Job, "defaults")) from None


def _check_stays(defaults: dict[str, Any], jobs: Any) -> None:
    """Refuse two stays in `defaults`, and one that conflicts with a job's."""
    stays = [name for name in STAYS if name in defaults]
    for stay in stays:
        if defaults[stay] is None:
            raise InputError(f"defaults.{stay}: must be a number, not null")
    if len(stays) == 2:
        raise InputError("defaults: takes at most one of iterations and duration_s; both are given")
    for k, job in enumerate(jobs if isinstance(jobs, list) and stays else []):
        for other in STAYS:
            if isinstance(job, dict) and other in job and other not in stays:
                raise InputError(f"jobs[{k}].{other}: does not go with defaults.{stays[0]}; a job has exactly one of the two")


def parse_scenario(data: dict[str, Any], source: str = "scenario", folder: Path = Path()) -> Scenario:
    """Build a scenario from the mapping of a file.

    Args:
        data: Mapping of the file; `defaults`, if present, is merged under every job.
        source: Name with which error messages begin.
        folder: Directory to which the paths of models, lengths and hardware are relative.

    Raises:
        InputError: If the mapping is invalid. The message names the source, the path of the field and the problem.
    """
    kind = next((key for key in _KINDS_OF_JOB_FILES if has_key(data, key)), None)
    other = f"is a job file (it has `{kind}`): `rollmux run` reads it" if kind else ""
    hint = " (if it is a job file, `rollmux run` reads it)" if _has_own_class(data) else ""

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        merged = merge_defaults(data)
        if "defaults" in data:
            _check_defaults(data["defaults"])
            _check_stays(data["defaults"], data.get("jobs"))
        if not _has_models(merged):
            return merged
        from rollmux_env.timing.filling import fill_in

        return fill_in(merged, folder)

    return checked(Scenario, data, source, prepare, other, hint)


def dump_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return the keys of a cluster as in a file."""
    return cluster.model_dump(mode="json", by_alias=True, exclude_unset=True)


def change_scenario(scenario: Scenario, cluster: dict[str, Any], label: str, jobs: tuple[Job, ...] | None = None) -> Scenario:
    """Return a scenario with another cluster, which is checked again.

    Args:
        scenario: Scenario to change.
        cluster: Keys of the cluster.
        label: Start of error messages.
        jobs: Other jobs, or None for those of the scenario.

    Raises:
        InputError: If the jobs do not fit the cluster; one line.
    """
    data = {"version": scenario.version, "cluster": cluster, "jobs": scenario.jobs if jobs is None else jobs}
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{label}: {format_error(problems(error)[0], Scenario)}") from None


def _has_own_class(data: dict[str, Any]) -> bool:
    """Return whether a job of the file, or the defaults, may have a class of Python, as in job files."""
    jobs = data.get("jobs")
    entries = (*(jobs if isinstance(jobs, list) else ()), data.get("defaults"))
    return any(isinstance(entry, dict) and ":" in str(entry.get("class", "")) for entry in entries)


def _has_models(data: dict[str, Any]) -> bool:
    jobs = data.get("jobs")
    return isinstance(jobs, list) and any(isinstance(job, dict) and job.get("model") is not None for job in jobs)


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Args:
        path: Path of the file, JSON if it ends in `.json`, otherwise YAML 1.2. If there is no such file, the example of that name.

    Raises:
        InputError: If the file cannot be read or is not a scenario.
    """
    try:
        file = find_file(path)
    except InputError:
        from rollmux_env.workloads import WORKLOADS  # which reads scenarios itself

        if str(path) in WORKLOADS:
            raise InputError(f"{path}: is a workload; `rollmux workload {path} --out FILE` writes a scenario file of it") from None
        raise
    return parse_scenario(read_mapping(file), str(path), file.parent)
