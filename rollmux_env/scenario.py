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
from rollmux_env.keys.cluster import SIDES, Cluster
from rollmux_env.keys.job import STAYS, Job
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import Phases
from rollmux_env.keys.unsupported import queue_key
from rollmux_env.reading import checked, has_key, merge_defaults, read_mapping
from rollmux_env.validation_errors import field_error, format_error, problems

_KINDS_OF_JOB_FILES = ("task", "class", "attach", "command")


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
        first: dict[str, int] = {}
        for k, job in enumerate(self.jobs):
            if job.id in first:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            first[job.id] = k
            if clash := job.clash(self.cluster):
                raise field_error(clash[1], "jobs", k, clash[0])
            for number in range(1 + len(job.shapes)):
                where = ("jobs", k, "shapes", number - 1) if number else ("jobs", k)
                asked = check_room(self.cluster, job.phases(number), where)
                if not number and (beyond := self.cluster.beyond_quota(job.user, asked)):
                    raise field_error(beyond, "jobs", k)
        return self


def check_room(cluster: Cluster, phases: Phases, where: tuple[str | int, ...]) -> dict[str, int]:
    """Refuse a job in a shape that does not fit into the empty cluster.

    Args:
        cluster: Cluster with its pools.
        phases: Both phases of the job in the shape.
        where: Path of the job or the shape.

    Returns:
        Number of nodes that the job asks for, by name of the pool.

    Raises:
        PydanticCustomError: If a pool is unknown, or nodes or memory do not suffice, as an error of `field_error`.
    """
    one_device, pools = cluster.one_device, cluster.pools
    asked = dict.fromkeys(pools, 0)
    for side in SIDES:
        phase: Phase = getattr(phases, side)
        if side == "rollout" and one_device and phase.pool in SIDES:
            continue
        if phase.pool not in pools:
            which = "" if "pool" in phase.model_fields_set else "by default "
            raise field_error(f"is {which}'{phase.pool}', which is none of {', '.join(pools)}", *where, side, "pool")
        pool = pools[phase.pool]
        asked[phase.pool] += phase.nodes
        if pool.max_nodes is not None and asked[phase.pool] > pool.max_nodes:
            who = "asks for" if asked[phase.pool] == phase.nodes else "rollout and training ask for"
            problem = f"{who} {asked[phase.pool]} nodes; the {phase.pool} pool has at most {pool.max_nodes}"
            raise field_error(problem, *where, side, "nodes")
        memories = (("host_memory_gb", pool.node_memory_gb, "node"), ("device_gb", pool.device_memory_gb, "GPU"))
        for field, limit_gb, what in memories:
            memory_gb = getattr(phase, field) + (getattr(phases.rollout, field) if one_device else 0.0)
            if limit_gb is not None and memory_gb > limit_gb * (1 + 1e-9):
                who = "the job asks for" if one_device else "asks for"
                problem = f"{who} {memory_gb:.10g} GB; a {phase.pool} {what} has {limit_gb:.10g} GB"
                raise field_error(problem, *where, side, field)
    return asked


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
    hint = f"; {kind} is a key of job files, which `rollmux run` reads" if kind else ""

    def prepare(data: dict[str, Any]) -> dict[str, Any]:
        merged = merge_defaults(data)
        if "defaults" in data:
            _check_defaults(data["defaults"])
            _check_stays(data["defaults"], data.get("jobs"))
        if not _has_models(merged):
            return merged
        from rollmux_env.timing.filling import fill_in

        return fill_in(merged, folder)

    return checked(Scenario, data, source, prepare, hint)


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
    file = find_file(path)
    return parse_scenario(read_mapping(file), str(path), file.parent)
