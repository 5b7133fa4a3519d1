"""Job files, version 1: the RL post-training jobs that `rollmux run` executes, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/jobs.md explains every key. A job is of the built-in kind, GRPO on a model and a
task, or of a class of the user's own; or it is started by its owner (`attach`), or by a service as a `command`, and asks for its
permits over HTTP. `load_jobs` merges `defaults` under every job, as in scenario files.
"""

from __future__ import annotations

import os
from collections.abc import Collection
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
    Positive,
    Priority,
    Staleness,
    UserName,
    Version,
    by_name,
    whole,
)
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import ONE_DEVICE, SIDES, Cluster, Side
from rollmux_env.keys.queue import Budget, beyond_quota
from rollmux_env.keys.shapes import Shape
from rollmux_env.reading import checked, has_key, merge_defaults, read_mapping
from rollmux_env.validation_errors import describe, field_error, format_error, one_line, problems
from runtime.jobs.attached_spec import NodeNames, ProfileSpec, Word, fill_attached
from runtime.jobs.grpo_spec import TINY, Algorithm, EvaluationSpec, ModelSpec, Named, RewardsSpec, SyncSpec, TaskSpec
from runtime.jobs.kinds import KINDS, check_kind
from runtime.jobs.named import located
from runtime.jobs.phase_spec import RolloutSpec, TrainingSpec
from runtime.jobs.shapes import check_shapes, nodes_in

_SCENARIO = "; no job has a task, class, attach or command: `rollmux bench` reads scenario files"
_TWO_POOLS = "is of no use to a real run, which has the pools rollout and training"
_RATE_OF_TINY, _RATE = 1e-3, 1e-6  # learning rates; the second as in TRL's GRPO


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


def _unset(value: Any) -> bool:
    return not value


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
    shapes: Annotated[tuple[Shape, ...], Field(strict=False, exclude_if=_unset)] = ()
    """Other numbers of nodes on which it may run, numbered from 1; as it is written is number 0. At most 16."""
    priority: Priority = 0
    """Its place in the queue: jobs of a higher one come first, of the same one in order of arrival."""
    user: UserName = ""
    """Whose job it is, for quotas and accounts."""
    budget: Budget | None = None
    """What it may cost and how long it may stay; it ends with the iteration in which either is spent."""
    staleness: Annotated[Staleness, Field(exclude_if=_unset)] = 0
    """Versions that the weights may have gone on by the time that what they sampled is trained on; 0 is on-policy."""
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
    attach: Annotated[bool, Field(exclude_if=_unset)] = False
    """It is started by its owner, who attaches it to a service."""
    command: Annotated[tuple[Word, ...] | None, Field(strict=False, min_length=1, exclude_if=_unset)] = None
    """It is started by the service, with these words, and attaches itself."""
    nodes: Annotated[NodeNames | None, Field(exclude_if=_unset)] = None
    """attach: the nodes on which it already is."""
    profile: Annotated[ProfileSpec | None, Field(exclude_if=_unset)] = None
    """attach, command: its worst case is not stated, but measured."""
    sync_s: Annotated[NonNegative, Field(exclude_if=_unset)] = 0.0
    """attach, command: seconds that bring the weights back to the rollout nodes; 0: it reports no sync."""
    eval_s: Annotated[Positive | None, Field(exclude_if=_unset)] = None
    """attach, command: longest seconds of evaluations between two rollouts; part of the rollout's worst case."""

    @model_validator(mode="before")
    @classmethod
    def _elsewhere(cls, data: Any) -> Any:
        return fill_attached(data)

    @property
    def is_attached(self) -> bool:
        """Whether it asks for its permits over HTTP: its owner has started it, or the service as a command."""
        return self.attach or self.command is not None

    @property
    def nodes_named(self) -> dict[str, tuple[str, ...]]:
        """The nodes on which it already is, by pool; nothing where it may be placed."""
        return {} if self.nodes is None else {"rollout": self.nodes.rollout, "training": self.nodes.training}

    @model_validator(mode="after")
    def _one_kind(self) -> JobSpec:
        check_kind(self)
        check_shapes(self)
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
        if self.cluster is not None and (other := other_pool(self.cluster)):
            raise field_error(_TWO_POOLS, "cluster", "pools", other)
        pools = self.cluster.pools if self.cluster else {}
        one_device = self.cluster is not None and self.cluster.one_device
        for k, job in enumerate(self.jobs):
            if job.id in first:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            first[job.id] = k
            if job.staleness and one_device:
                raise field_error(f"does not go with cluster.one_device: {ONE_DEVICE}", "jobs", k, "staleness")
            if job.shapes and one_device:
                raise field_error("do not go with cluster.one_device, where a job has all nodes of its group", "jobs", k, "shapes")
            for number in range(1 + len(job.shapes)):
                where = ("shapes", number - 1) if number else ()
                for name, nodes in nodes_in(job, number).items():
                    most = pools[name].max_nodes if name in pools else None
                    if most is not None and nodes > most:
                        too_many = f"asks for {nodes} nodes; the {name} pool has at most {most}"
                        raise field_error(too_many, "jobs", k, *where, name, "nodes")
            asked = {name: getattr(job, name).nodes for name in pools}
            if self.cluster is not None and (beyond := beyond_quota(job.user, asked, self.cluster)):
                raise field_error(beyond, "jobs", k)
        return self


def load_jobs(path: str | Path) -> Jobs:
    """Read a job file.

    Args:
        path: a `.json` file is read as JSON, any other as YAML 1.2; where there is none, the example of that name.

    Raises:
        InputError: it cannot be read or is no job file, or a file or model that a job names is missing; one line.
    """
    from runtime.jobs.checks import check_names

    file = find_file(path)
    jobs = parse_jobs(read_mapping(file), str(path), file.resolve().parent)
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
        cluster = Cluster.model_validate(data["cluster"])
    except ValidationError as error:
        raise InputError(f"{name}: {one_line(format_error(problems(error)[0], Cluster, 'cluster'))}") from None
    if other := other_pool(cluster):
        raise InputError(f"{name}: cluster.pools.{other}: {_TWO_POOLS}")
    return cluster


def other_pool(cluster: Cluster) -> str | None:
    """The first pool of a cluster that real runs do not know."""
    return next((name for name in cluster.pools if name not in SIDES), None)


def parse_jobs(data: dict[str, Any], source: str, folder: Path) -> Jobs:
    """Build jobs from the mapping that a file holds.

    Args:
        data: the file's mapping; `defaults`, if there, is merged under every job.
        source: the name that error messages begin with.
        folder: of jobs that name none.

    Raises:
        InputError: one line with the source, the path of the field and what is wrong with its value.
    """
    hint = "" if any(has_key(data, kind) for kind in KINDS) else _SCENARIO
    jobs = checked(Jobs, data, source, _merged, hint)
    here = [job.model_copy(update={"folder": os.path.abspath(located(folder, job.folder))}) for job in jobs.jobs]
    return jobs.model_copy(update={"jobs": tuple(here)})


def _merged(data: dict[str, Any]) -> dict[str, Any]:
    """The file's mapping with `defaults` under every job, but for what belongs to the other kind of job."""
    defaults, jobs = data.get("defaults"), data.get("jobs")
    if not isinstance(defaults, dict) or not isinstance(jobs, list):
        return merge_defaults(data)
    merged = []
    for job in jobs:
        named = [kind for kind in KINDS if isinstance(job, dict) and kind in job]
        others = {key for kind, keys in KINDS.items() for key in keys if kind not in named} if len(named) == 1 else set()
        own = {key for kind in named for key in KINDS[kind]}
        fitting = {key: value for key, value in defaults.items() if key in own or key not in others}
        merged += merge_defaults({"defaults": fitting, "jobs": [job]})["jobs"]
    return {key: value for key, value in data.items() if key != "defaults"} | {"jobs": merged}


def nodes_asked(spec: JobSpec, pools: Collection[str]) -> dict[Side, int]:
    """Nodes that a job asks for, of those pools that there are."""
    return {pool: getattr(spec, pool).nodes if pool in pools else 0 for pool in SIDES}
