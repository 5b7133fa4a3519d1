"""Job files, version 1: the RL post-training jobs that `rollmux run` executes, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/jobs.md explains every key. A job is of the built-in kind, GRPO on a model and a
task, or of a class of the user's own. `load_jobs` merges `defaults` under every job, as in scenario files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import (
    AtLeastOne,
    Count,
    FileModel,
    Index,
    JobId,
    NonNegative,
    Priority,
    UserName,
    Version,
    by_name,
    whole,
)
from rollmux_env.queue_keys import Budget, beyond_quota
from rollmux_env.reading import merge_defaults, only_in_defaults, read_mapping
from rollmux_env.scenario import Cluster
from rollmux_env.validation_errors import describe, field_error, field_of, format_error, one_line, problems
from runtime.jobs.grpo_spec import TINY, Algorithm, EvaluationSpec, ModelSpec, Named, RewardsSpec, SyncSpec, TaskSpec
from runtime.jobs.named import located
from runtime.jobs.phase_spec import RolloutSpec, TrainingSpec

_RATE_OF_TINY, _RATE = 1e-3, 1e-6  # learning rates; the second as in TRL's GRPO
_OF_A_TASK = ("task", "model", "algorithm", "rewards", "evaluation", "sync")  # keys of the built-in kind of job alone
_OF_A_CLASS = ("class", "options")


def _no_checkpoints(value: Any) -> Any:
    return {"every": "none"} if value is None or value == "none" else value


def _interval(value: Any) -> Any:
    value = whole(value)
    if value in ("auto", "none") or (type(value) is int and 1 <= value <= 2**31):
        return value
    raise ValueError(f"must be a whole number of iterations from 1, auto or none, not {describe(value)}")


class CheckpointSpec(FileModel):
    """When a job's state is written to the disk, and how much of it stays there."""

    every: Annotated[Annotated[int, Field(ge=1, le=2**31)] | Literal["auto", "none"], BeforeValidator(_interval)] = "auto"
    """After so many iterations; auto: so that writing costs a twentieth of an iteration in the mean; none: never."""
    keep: Count = 2
    """The last ones that stay on the disk."""

    @property
    def is_wanted(self) -> bool:
        """Whether there are any."""
        return self.every != "none"


def _folder_name(value: str) -> str:
    if value in (".", ".."):
        raise ValueError(f"is the name of folders of the job, and cannot be {describe(value)}")
    return value


class JobSpec(FileModel):
    """A job of a job file."""

    id: Annotated[JobId, AfterValidator(_folder_name)]
    """Its name, unique in the file; quote one that reads as a number or a boolean."""
    arrival_s: NonNegative = 0.0
    """When it arrives, seconds from the start of the run."""
    iterations: Count
    """It is done after so many."""
    slo: AtLeastOne
    """Longest tolerated iteration time, as a multiple of the job's own solo time."""
    rollout: RolloutSpec = RolloutSpec()
    """What it asks of the rollout pool."""
    training: TrainingSpec = TrainingSpec()
    """What it asks of the training pool."""
    priority: Priority = 0
    """Its place in the queue: jobs of a higher one come first, of the same one in order of arrival."""
    user: UserName = ""
    """Whose job it is, for quotas and accounts."""
    budget: Budget | None = None
    """What it may cost and how long it may stay; it ends with the iteration in which either is spent."""
    movable: bool = True
    """Whether a policy may move it to other nodes while it runs; one with workers and without checkpoints never is."""
    checkpoint: Annotated[CheckpointSpec, BeforeValidator(_no_checkpoints)] = CheckpointSpec()
    """When its state is written to the disk; `none` is short for `every: none`."""
    seed: Index = 0
    """Of the model `tiny`, of the data's order and of sampling."""
    model: Annotated[ModelSpec, BeforeValidator(by_name)] = ModelSpec()
    """Built-in kind: the language model."""
    task: Annotated[TaskSpec, BeforeValidator(by_name)] | None = None
    """Built-in kind: prompts and rewards."""
    algorithm: Algorithm = Algorithm()
    """Built-in kind: settings of GRPO."""
    rewards: RewardsSpec = RewardsSpec()
    """Built-in kind: how long a reward may take."""
    evaluation: EvaluationSpec | None = None
    """Built-in kind: how good the model is on held-out lines."""
    sync: SyncSpec = SyncSpec()
    """Built-in kind: the way of new weights."""
    job_class: Named | None = Field(default=None, alias="class")
    """A job of one's own instead: module:Class, whose methods are marked as phases."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of that class."""
    folder: str = ""
    """Where relative files, and modules that are not installed, are looked for; the job file's own folder."""

    @model_validator(mode="after")
    def _one_kind(self) -> JobSpec:
        if (self.task is None) == (self.job_class is None):
            raise field_error(f"needs exactly one of task and class; {'neither' if self.task is None else 'both'} is given")
        longest, needed = self.rollout.engine_options.max_model_len, self.algorithm.max_prompt_tokens + self.algorithm.max_tokens
        if longest is not None and longest < needed and self.job_class is None:
            problem = f"is {longest}; max_prompt_tokens and max_tokens of the algorithm are {needed} together"
            raise field_error(problem, "rollout", "engine_options", "max_model_len")
        if self.job_class is not None and self.rollout.policy != "plain":
            raise field_error("is a key of jobs with a task", "rollout", "policy")
        if self.job_class is not None and self.training.cpu_offload:
            raise field_error("is a key of jobs with a task", "training", "cpu_offload")
        if self.evaluation is not None and self.task is not None and self.task.name != "jsonl":
            raise field_error(f"goes with the task jsonl, not with {describe(self.task.name)}", "evaluation")
        for field in ("model", "algorithm", "rewards", "evaluation", "sync"):
            if self.job_class is not None and field in self.model_fields_set:
                raise field_error("is a key of jobs with a task; a class gets its settings by options", field)
        if self.job_class is None and self.options:
            raise field_error("go with class; a task of one's own takes task.options", "options")
        return self

    @property
    def settings(self) -> Algorithm:
        """`algorithm`, with the learning rate that its model has by default."""
        usual = _RATE_OF_TINY if self.model.name == TINY else _RATE
        return self.algorithm.model_copy(update={"learning_rate": self.algorithm.learning_rate or usual})

    def path(self, name: str) -> Path:
        """A file that the job names, seen from `folder`."""
        return located(self.folder, name)


class Jobs(FileModel):
    """A job file."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster | None = None
    """The two pools, as in scenario files; without it what the runtime finds."""
    jobs: Annotated[tuple[JobSpec, ...], Field(strict=False, min_length=1)]
    """The jobs."""

    @model_validator(mode="after")
    def _consistent(self) -> Jobs:
        first: dict[str, int] = {}
        pools = self.cluster.pools if self.cluster else {}
        for k, job in enumerate(self.jobs):
            if job.id in first:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            first[job.id] = k
            for name, pool in pools.items():
                most, nodes = pool.max_nodes, getattr(job, name).nodes
                if most is not None and nodes > most:
                    raise field_error(f"asks for {nodes} nodes; the {name} pool has at most {most}", "jobs", k, name, "nodes")
            asked = {name: getattr(job, name).nodes for name in pools}
            if self.cluster is not None and (problem := beyond_quota(job.user, asked, self.cluster)):
                raise field_error(problem, "jobs", k)
        return self


def load_jobs(path: str | Path) -> Jobs:
    """Read a job file.

    Args:
        path: a `.json` file is read as JSON, any other as YAML 1.2.

    Raises:
        InputError: it cannot be read or is no job file, or a file or model that a job names is missing; one line.
    """
    from runtime.jobs.checks import check_names

    jobs = parse_jobs(read_mapping(Path(path)), str(path), Path(path).resolve().parent)
    for k, job in enumerate(jobs.jobs):
        check_names(job, f"{one_line(str(path), 4096)}: jobs[{k}]")
    return jobs


def load_cluster(path: str | Path) -> Cluster:
    """The `cluster` of a file, which may be a job file or hold nothing else.

    Raises:
        InputError: it cannot be read, or has none; one line.
    """
    name, data = one_line(str(path), 4096), read_mapping(Path(path))
    if "cluster" not in data:
        raise InputError(f"{name}: cluster: is missing")
    try:
        return Cluster.model_validate(data["cluster"])
    except ValidationError as error:
        raise InputError(f"{name}: {one_line(format_error(problems(error)[0], Cluster, 'cluster'))}") from None


def parse_jobs(data: dict[str, Any], source: str, folder: Path) -> Jobs:
    """Build jobs from the mapping that a file holds.

    Args:
        data: the file's mapping; `defaults`, if there, is merged under every job.
        source: the name that error messages begin with.
        folder: of jobs that name none.

    Raises:
        InputError: one line with the source, the path of the field and what is wrong with its value.
    """
    try:
        jobs = Jobs.model_validate(_merged(data))
        here = [job.model_copy(update={"folder": os.path.abspath(located(folder, job.folder))}) for job in jobs.jobs]
        return jobs.model_copy(update={"jobs": tuple(here)})
    except ValidationError as error:
        first = problems(error)[0]
        problem = format_error(first, Jobs) + (" (set by defaults)" if only_in_defaults(data, field_of(first)) else "")
    except InputError as error:
        problem = str(error)
    raise InputError(f"{one_line(source, 4096)}: {one_line(problem)}")


def _merged(data: dict[str, Any]) -> dict[str, Any]:
    """The file's mapping with `defaults` under every job, but for what belongs to the other kind of job."""
    defaults, jobs = data.get("defaults"), data.get("jobs")
    if not isinstance(defaults, dict) or not isinstance(jobs, list):
        return merge_defaults(data)
    merged = []
    for job in jobs:
        others = _OF_A_CLASS if isinstance(job, dict) and "task" in job else _OF_A_TASK
        both = not isinstance(job, dict) or ("task" in job) == ("class" in job)
        fitting = {key: value for key, value in defaults.items() if both or key not in others}
        merged += merge_defaults({"defaults": fitting, "jobs": [job]})["jobs"]
    return {key: value for key, value in data.items() if key != "defaults"} | {"jobs": merged}
