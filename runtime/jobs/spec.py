"""Job files, version 1: the RL post-training jobs that `rollmux run` executes, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/jobs.md explains every key. A job is of the kind that a key of it says: with a
`task` it is the built-in one, GRPO on a model; with a `class` it is of the user's own; with `attach` its owner starts it, with a
`command` a service does, and it asks for permits over HTTP. `load_jobs` merges `defaults` under every job, as in scenario files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, ValidationError, model_validator

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
from rollmux_env.keys.queue import Budget
from rollmux_env.keys.shapes import Shape
from rollmux_env.reading import checked, has_key, merge_defaults, read_mapping
from rollmux_env.validation_errors import describe, field_error, format_error, one_line, problems
from runtime.jobs.grpo_spec import TINY, Algorithm, EvaluationSpec, ModelSpec, Named, RewardsSpec, SyncSpec, TaskSpec
from runtime.jobs.named import located
from runtime.jobs.phase_spec import STATED, NodeNames, ProfileSpec, RolloutSpec, TrainingSpec, Word, is_unset
from runtime.jobs.shapes import check_shapes, nodes_in
from runtime.jobs.tasks import is_cheap

_SCENARIO = "; no job has a task, class, attach or command: `rollmux bench` reads scenario files"
_TWO_POOLS = "is of no use to a real run, which has the pools rollout and training"
_RATE_OF_TINY, _RATE = 1e-3, 1e-6  # learning rates; the second as in TRL's GRPO

_OWN, _ELSEWHERE = ("task", "class"), ("attach", "command")
_KINDS_WITH: dict[tuple[str, ...], tuple[str, ...]] = {
    **{(kind,): (kind,) for kind in (*_OWN, *_ELSEWHERE)},
    **{(key,): ("task",) for key in ("model", "algorithm", "rewards", "evaluation", "sync")},
    **{("rollout", key): ("task",) for key in ("sizes", "policy", "interruptible", "eta")},
    ("training", "cpu_offload"): ("task",),
    ("options",): ("class",),
    **{("rollout", key): _OWN for key in ("engine", "tensor_parallel", "engine_options")},
    **{(key,): _OWN for key in ("checkpoint", "shapes")},
    ("nodes",): ("attach",),
    **{(side, key): _ELSEWHERE for side in SIDES for key in STATED},
    **{(key,): _ELSEWHERE for key in ("profile", "sync_s", "eval_s")},
    ("staleness",): ("task", *_ELSEWHERE),
}
"""Keys that not every job may have: the kinds that do, by the key that makes a job one of them."""


Conflict = tuple[str, *tuple[str | int, ...]]
"""What is wrong, and the path of the field."""


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


class JobSpec(FileModel):
    """A job of a job file, of one of the kinds below; what its kind has no key for is as if it were left out."""

    id: JobId
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
    shapes: Annotated[tuple[Shape, ...], Field(strict=False, exclude_if=is_unset)] = ()
    """Other numbers of nodes on which it may run, numbered from 1; as it is written is number 0. At most 16."""
    priority: Priority = 0
    """Its place in the queue: jobs of a higher one come first, of the same one in order of arrival."""
    user: UserName = ""
    """Whose job it is, for quotas and accounts."""
    budget: Budget | None = None
    """What it may cost and how long it may stay; it ends with the iteration in which either is spent."""
    staleness: Annotated[Staleness, Field(exclude_if=is_unset)] = 0
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
    attach: Annotated[bool, Field(exclude_if=is_unset)] = False
    """It is started by its owner, who attaches it to a service."""
    command: Annotated[tuple[Word, ...] | None, Field(strict=False, min_length=1, exclude_if=is_unset)] = None
    """It is started by the service, with these words, and attaches itself."""
    nodes: Annotated[NodeNames | None, Field(exclude_if=is_unset)] = None
    """attach: the nodes on which it already is."""
    profile: Annotated[ProfileSpec | None, Field(exclude_if=is_unset)] = None
    """attach, command: its worst case is not stated, but measured."""
    sync_s: Annotated[NonNegative, Field(exclude_if=is_unset)] = 0.0
    """attach, command: seconds that bring the weights back to the rollout nodes; 0: it reports no sync."""
    eval_s: Annotated[Positive | None, Field(exclude_if=is_unset)] = None
    """attach, command: longest seconds of evaluations between two rollouts; part of the rollout's worst case."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, data: Any, handler: ModelWrapValidatorHandler[JobSpec]) -> JobSpec:
        """Let a mapping become a job of the kind that it says, if it has no keys of another one."""
        if cls is not JobSpec or not isinstance(data, dict):
            return handler(data)
        kinds = _kinds_named(data)
        if len(kinds) != 1:
            handler(data)  # which names keys that are none: a kind's may be among them
            which = "none is given" if not kinds else f"{' and '.join(kinds)} are given"
            raise field_error(f"needs exactly one of task, class, attach and command; {which}")
        for path, others in _KINDS_WITH.items():
            if kinds[0] not in others and _has(data, path):
                having = " or ".join(filter(None, (", ".join(others[:-1]), others[-1])))
                raise field_error(f"is a key of jobs with {having}, not with {kinds[0]}", *path)
        return _KINDS[kinds[0]].model_validate(data)

    @model_validator(mode="after")
    def _fits(self) -> JobSpec:
        check_shapes(self)
        for problem, *field in self._conflicts():
            raise field_error(problem, *field)
        return self

    def _conflicts(self) -> Iterable[Conflict]:
        """Problems of keys that do not go together, each with the path of one of them."""
        return ()

    @property
    def is_attached(self) -> bool:
        """Whether it asks for its permits over HTTP: its owner has started it, or the service as a command."""
        return self.attach or self.command is not None

    @property
    def is_asynchronous(self) -> bool:
        """Whether its rollouts may be ahead of its trainings, and so run beside them."""
        return self.staleness > 0

    @property
    def nodes_named(self) -> dict[str, tuple[str, ...]]:
        """The nodes on which it already is, by pool; nothing where it may be placed."""
        return {} if self.nodes is None else {"rollout": self.nodes.rollout, "training": self.nodes.training}

    @property
    def settings(self) -> Algorithm:
        """`algorithm`, with the learning rate that its model has by default."""
        usual = _RATE_OF_TINY if self.model.name == TINY else _RATE
        return self.algorithm.model_copy(update={"learning_rate": self.algorithm.learning_rate or usual})

    def path(self, name: str) -> Path:
        """A file that the job names, seen from `folder`."""
        return located(self.folder, name)


class TaskJob(JobSpec):
    """A job of the built-in kind."""

    def _conflicts(self) -> Iterator[Conflict]:
        assert self.task is not None
        rollout, task, together = (
            self.rollout,
            describe(self.task.name),
            self.algorithm.max_prompt_tokens + self.algorithm.max_tokens,
        )
        longest = rollout.engine_options.max_model_len
        if longest is not None and longest < together:
            problem = f"is {longest}; max_prompt_tokens and max_tokens of the algorithm are {together} together"
            yield problem, "rollout", "engine_options", "max_model_len"
        if rollout.sizes and self.staleness and not rollout.interruptible:
            problem = "with a staleness need `interruptible`: engines of another size go on with weights that have come meanwhile"
            yield problem, "rollout", "sizes"
        if rollout.interruptible and not self.staleness:
            yield "goes with a staleness: on-policy no new weights come in the middle of a rollout", "rollout", "interruptible"
        if self.evaluation is not None and self.task.name != "jsonl":
            yield f"goes with the task jsonl, not with {task}", "evaluation"
        if self.rewards.workers is not None and is_cheap(self.task):
            yield f"are of no use to the task {task}, whose rewards take microseconds beside the engine", "rewards", "workers"


class ClassJob(JobSpec):
    """A job of a class of the user's own."""


class JobElsewhere(JobSpec):
    """A job that the runtime does not run itself: it asks for its permits over HTTP, and states what it needs."""

    movable: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_many_nodes_as_named(cls, data: Any) -> Any:
        filled, names = {**data}, data.get("nodes")
        for side in SIDES:
            phase, named = data.get(side, {}), names.get(side) if isinstance(names, dict) else None
            if isinstance(phase, dict) and "nodes" not in phase and isinstance(named, list | tuple) and named:
                filled[side] = {**phase, "nodes": len(named)}
        return filled

    def _conflicts(self) -> Iterator[Conflict]:
        profile, kind = self.profile, "attach" if self.attach else "command"
        if profile is not None and self.nodes is not None:
            yield "does not go with nodes, whose group has to be known at once", "profile"
        for side in SIDES:
            phase, names = getattr(self, side), self.nodes_named.get(side, ())
            if profile is None and phase.worst_case_s is None:
                yield f"is missing; a job with {kind} states it, or has a profile", side, "worst_case_s"
            if profile is not None and phase.worst_case_s is not None:
                yield "is measured where there is a profile; give one of the two", side, "worst_case_s"
            if len(set(names)) < len(names):
                yield "names a node twice", "nodes", side
            if names and phase.nodes != len(names):
                yield f"is {phase.nodes}; nodes.{side} names {len(names)}", side, "nodes"
        if profile is not None and profile.iterations >= self.iterations:
            yield f"must be less than iterations, which is {self.iterations}", "profile", "iterations"


_KINDS: dict[str, type[JobSpec]] = {"task": TaskJob, "class": ClassJob, "attach": JobElsewhere, "command": JobElsewhere}


def _kinds_named(data: Mapping[str, Any]) -> list[str]:
    """The kinds of which an entry of a file says that it is one."""
    return [kind for kind in _KINDS if data.get(kind) not in (None, False)]


def _has(data: Any, path: tuple[str, ...]) -> bool:
    """Whether a mapping gives a key, below others perhaps, a value."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data not in (None, False)


class Jobs(FileModel):
    """A job file."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster | None = None
    """The two pools, as in scenario files; without it what the runtime finds."""
    jobs: Annotated[tuple[JobSpec, ...], Field(strict=False, min_length=1)]
    """The jobs."""

    @model_validator(mode="after")
    def _fits(self) -> Jobs:
        if self.cluster is not None and (other := other_pool(self.cluster)):
            raise field_error(_TWO_POOLS, "cluster", "pools", other)
        first: dict[str, int] = {}
        for k, job in enumerate(self.jobs):
            if first.setdefault(job.id, k) != k:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            for problem, *field in _conflicts_with(job, self.cluster) if self.cluster is not None else ():
                raise field_error(problem, "jobs", k, *field)
        return self


def _conflicts_with(job: JobSpec, cluster: Cluster) -> Iterator[Conflict]:
    """Why a job cannot run on a cluster: problems, each with the path of its field."""
    if cluster.one_device and job.staleness:
        yield f"does not go with cluster.one_device: {ONE_DEVICE}", "staleness"
    if cluster.one_device and job.shapes:
        yield "do not go with cluster.one_device, where a job has all nodes of its group", "shapes"
    for number in range(1 + len(job.shapes)):
        for side, nodes in nodes_in(job, number).items():
            most = cluster.pools[side].max_nodes if side in cluster.pools else None
            if most is not None and nodes > most:
                where = ("shapes", number - 1) if number else ()
                yield f"asks for {nodes} nodes; the {side} pool has at most {most}", *where, side, "nodes"
    if beyond := cluster.beyond_quota(job.user, {name: getattr(job, name).nodes for name in cluster.pools}):
        yield (beyond,)


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
    name, data = one_line(str(path), 4096), read_mapping(find_file(path))
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
    hint = "" if any(has_key(data, kind) for kind in _KINDS) else _SCENARIO
    jobs = checked(Jobs, data, source, _merged, hint)
    here = [job.model_copy(update={"folder": os.path.abspath(located(folder, job.folder))}) for job in jobs.jobs]
    return jobs.model_copy(update={"jobs": tuple(here)})


def _merged(data: dict[str, Any]) -> dict[str, Any]:
    """The file's mapping with `defaults` under every job, but for keys that only other kinds of jobs have."""
    defaults, jobs = data.get("defaults"), data.get("jobs")
    if not isinstance(defaults, dict) or not isinstance(jobs, list):
        return merge_defaults(data)
    merged = []
    for job in jobs:
        kinds = _kinds_named(job) if isinstance(job, dict) else []
        fitting = {key: value for key, value in defaults.items() if len(kinds) != 1 or kinds[0] in _KINDS_WITH.get((key,), kinds)}
        merged += merge_defaults({"defaults": fitting, "jobs": [job]})["jobs"]
    return {key: value for key, value in data.items() if key != "defaults"} | {"jobs": merged}


def nodes_asked(spec: JobSpec, pools: Collection[str]) -> dict[Side, int]:
    """Nodes that a job asks for, of those pools that there are."""
    return {pool: getattr(spec, pool).nodes if pool in pools else 0 for pool in SIDES}
