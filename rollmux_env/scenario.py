"""Scenario files, version 1: two pools and the jobs that arrive, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/scenario.md explains every key. `load_scenario` merges `defaults` under every
job and returns a `Scenario`; everything else in RollMux starts from one. A job may give `model` and `lengths` instead of
seconds and gigabytes: `rollmux_env.timing.filling` then fills in what it leaves out. The texts under the fields are also the
descriptions in the JSON Schema of `rollmux_env.schema`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
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
    NodeCount,
    NonNegative,
    Positive,
    Priority,
    Staleness,
    UserName,
    Version,
    by_name,
    whole,
)
from rollmux_env.queue_keys import Budget, Quota, beyond_quota, queue_key
from rollmux_env.reading import merge_defaults, only_in_defaults, read_mapping
from rollmux_env.timing.alone import alone_s
from rollmux_env.timing.described import Lengths, Model, Timing
from rollmux_env.validation_errors import describe, field_error, field_of, format_error, one_line, problems

STAYS = ("iterations", "duration_s")
ONE_DEVICE = "a device runs one phase after the other"


class Pool(FileModel):
    """One of the two pools."""

    gpu: str = ""
    """A label of the GPU type; it sets no price."""
    gpus_per_node: Count
    """GPUs of a node."""
    usd_per_gpu_hour: NonNegative
    """Price of one GPU, $/h."""
    node_memory_gb: NonNegative | None = None
    """Host memory of a node, GB; null is unlimited."""
    device_memory_gb: NonNegative | None = None
    """Memory of each GPU for what jobs keep there between their phases, GB; null is unlimited."""
    max_nodes: Count | None = None
    """Most nodes that can be provisioned at once; null is unlimited."""

    @property
    def usd_per_node_hour(self) -> float:
        """Price of a node, $/h."""
        return self.gpus_per_node * self.usd_per_gpu_hour


_NOBODYS = Pool(gpus_per_node=1, usd_per_gpu_hour=0.0)


class Cluster(FileModel):
    """The two pools and what holds for all groups."""

    rollout: Pool = _NOBODYS
    """The pool that generates the responses. With one_device it may be left out, and counts for nothing."""
    training: Pool
    """The pool that trains on them."""
    max_group_size: Count = 5
    """Most jobs in one co-execution group."""
    migration_s: NonNegative = 300.0
    """Pause of a job that is moved to another placement (checkpoint and restart), seconds."""
    # The default is not written, so that what has no such key keeps its hash.
    one_device: Annotated[bool, Field(exclude_if=lambda one_device: not one_device)] = False
    """Whether training is the only pool: the nodes of a group run the rollout and the training of each member in turn."""
    quotas: Annotated[dict[UserName, Quota], Field(exclude_if=lambda quotas: not quotas)] = Field(default={})
    """The most that the jobs of a user may hold at once: {user: {nodes, usd_per_hour}}."""

    @model_validator(mode="after")
    def _both_pools(self) -> Cluster:
        if not self.one_device and "rollout" not in self.model_fields_set:
            raise field_error("is missing", "rollout")
        return self

    @property
    def pools(self) -> dict[Literal["rollout", "training"], Pool]:
        """The pools that there are, by name."""
        return {"training": self.training} if self.one_device else {"rollout": self.rollout, "training": self.training}


class Actual(FileModel):
    """What really happens, for event replays: worst_case_s * X, X lognormal, drawn anew for every iteration."""

    mean_fraction: Positive
    """Mean of X before the cap, as a fraction of the worst case."""
    cv: NonNegative = 0.0
    """Coefficient of variation of X before the cap."""
    cap: bool = True
    """Whether X is at most 1, so that no phase takes longer than its worst case."""


class Switch(FileModel):
    """What a change of jobs on a node adds to a phase, for event replays."""

    warm_s: NonNegative = 0.0
    """Seconds added where the phase's node last ran another job."""
    cold_s: NonNegative = 0.0
    """Seconds added to the job's first phase in a placement."""


class Phase(FileModel):
    """A job's rollout or training phase."""

    nodes: NodeCount = 1
    """Nodes that the phase asks for."""
    worst_case_s: Positive
    """Its longest duration on that many nodes, seconds."""
    host_memory_gb: NonNegative = 0.0
    """Host memory that keeps the job resident, GB per node at any number of nodes."""
    device_gb: Annotated[NonNegative, Field(exclude_if=lambda device_gb: not device_gb)] = 0.0
    """Memory that the job keeps on each GPU of a node between its phases, GB."""
    actual: Actual | None = None
    """What really happens, for event replays; without it every iteration takes the worst case."""
    switch: Switch = Switch()
    """Times of warm and cold starts, for event replays."""


def _node_keys(value: Any) -> Any:
    """by_nodes: integer keys, or their strings (JSON has no others)."""
    if not isinstance(value, dict):
        return value
    keys: dict[Any, Any] = {}
    for key, seconds in value.items():
        number = int(key) if isinstance(key, str) and re.fullmatch("[1-9][0-9]{0,8}", key) else whole(key)
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{describe(key)} is not a number of nodes")
        if number in keys:
            raise ValueError(f"{number} nodes are given twice")
        keys[number] = seconds
    return dict(sorted(keys.items()))


class Training(Phase):
    """A job's training phase."""

    by_nodes: Annotated[dict[Count, Positive], BeforeValidator(_node_keys)] = Field(default={})
    """Its longest duration, seconds, on more nodes than `nodes`: {number of nodes: seconds}."""

    @model_validator(mode="after")
    def _larger(self) -> Training:
        for key in self.by_nodes:
            if key <= self.nodes:
                raise field_error(f"must be above training.nodes, which is {self.nodes}", "by_nodes", key)
        return self


class Drift(FileModel):
    """Factors on the durations from an iteration on, for event replays; they may pass the worst case."""

    iteration: Index
    """The first iteration, counted from 0, that they hold for; they hold until the next entry."""
    rollout: Positive = 1.0
    """Factor on the rollout phase."""
    training: Positive = 1.0
    """Factor on the training phase."""


class Colocated(FileModel):
    """The job run the co-located way: both phases, one after the other, on training nodes of its own."""

    nodes: NodeCount
    """Training nodes."""
    rollout_s: Positive
    """Longest rollout on them, seconds."""
    training_s: Positive
    """Longest training on them, seconds."""


def _ordered(drift: tuple[Drift, ...]) -> tuple[Drift, ...]:
    if any(a.iteration >= b.iteration for a, b in itertools.pairwise(drift)):
        raise ValueError("must be in order of iteration, each iteration once")
    return drift


class Job(FileModel):
    """An RL post-training job: a cycle of rollout, training and sync."""

    id: JobId
    """Its name, unique in the file; quote one that reads as a number or a boolean."""
    arrival_s: NonNegative
    """When it arrives, seconds from the start of the scenario."""
    iterations: Count | None = None
    """It leaves after so many iterations. Exactly one of `iterations` and `duration_s` is given."""
    duration_s: Positive | None = None
    """It leaves so many seconds after its admission. Exactly one of `iterations` and `duration_s` is given."""
    slo: AtLeastOne
    """Longest tolerated iteration time, as a multiple of the job's own solo time."""
    rollout: Phase
    """Generates the responses."""
    training: Training
    """Updates the weights."""
    sync_s: NonNegative = 0.0
    """Seconds that bring the weights back to the rollout nodes; they delay the job and occupy no node."""
    # The default is not written, so that what has no such key keeps its hash.
    staleness: Annotated[Staleness, Field(exclude_if=lambda staleness: not staleness)] = 0
    """Most versions that the weights may be old which sampled what is trained; 0 is on-policy, more is asynchronous."""
    drift: Annotated[tuple[Drift, ...], Field(strict=False), AfterValidator(_ordered)] = ()
    """How the durations change over time, for event replays; in order of iteration."""
    # The default is not written, so that what has no such key keeps its hash.
    movable: Annotated[bool, Field(exclude_if=lambda movable: movable)] = True
    """Whether it may be given another place while it runs."""
    priority: Annotated[Priority, Field(exclude_if=lambda priority: not priority)] = 0
    """Its place in the queue: jobs of a higher one come first, of the same one in order of arrival."""
    user: Annotated[UserName, Field(exclude_if=lambda user: not user)] = ""
    """Whose job it is, for quotas and accounts."""
    budget: Annotated[Budget | None, Field(exclude_if=lambda budget: budget is None)] = None
    """What it may cost and how long it may stay; it leaves when either is spent. null is no limit."""
    colocated: Colocated | None = None
    """The job on co-located nodes, for the `colocated` baseline; null takes training.nodes and the phases' own lengths."""
    model: Annotated[Model | None, BeforeValidator(by_name)] = None
    """The language model: what the job does not say of seconds and memory is predicted from it; goes with lengths."""
    lengths: Lengths | None = None
    """What a rollout is asked for and how long its responses are, for a job with a model."""
    timing: Timing | None = None
    """The predicted parts of its phases, for replays that look inside a rollout; filled in for a job with a model."""

    @model_validator(mode="after")
    def _with_lengths(self) -> Job:
        if (self.lengths is None) != (self.model is None and self.timing is None):
            problem = "needs a model, from which phases are predicted" if self.lengths else "is missing; a model needs it"
            raise field_error(problem, "lengths")
        if self.timing is not None:
            for name in ("rollout", "training"):
                if getattr(self, name).actual is not None:
                    raise field_error("does not go with a model, whose durations are drawn from its lengths", name, "actual")
        return self

    @model_validator(mode="after")
    def _one_stay(self) -> Job:
        stays = [name for name in STAYS if name in self.model_fields_set]
        if len(stays) != 1:
            raise field_error(f"needs exactly one of iterations and duration_s; {'both are' if stays else 'neither is'} given")
        if getattr(self, stays[0]) is None:
            raise field_error("must be a number, not null", stays[0])
        return self

    @property
    def solo_s(self) -> float:
        """T_solo: seconds of an iteration of the job alone on its own nodes."""
        return alone_s(self.rollout.worst_case_s, self.training.worst_case_s, self.sync_s, self.staleness)

    def training_s(self, nodes: int) -> float:
        """Worst-case seconds of the training phase on a pool of `nodes` training nodes."""
        seconds = self.training.worst_case_s
        for key, value in self.training.by_nodes.items():
            if key <= nodes:
                seconds = value
        return seconds


class Scenario(FileModel):
    """A two-cluster placement problem: the cluster and the jobs, in the file's order."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster
    """The two pools and what holds for all groups."""
    jobs: Annotated[tuple[Job, ...], Field(strict=False, min_length=1)]
    """The jobs that arrive."""

    def canonical_json(self) -> str:
        """The scenario as a JSON file with defaults filled in and keys sorted: the same text for the same problem."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True, separators=(",", ":"))

    @property
    def queue_key(self) -> str | None:
        """The first of the keys `quotas`, `priority`, `user` and `budget` that the file uses, as a path; None: none."""
        return queue_key(self.cluster, self.jobs)

    @property
    def sha256(self) -> str:
        """Hash of `canonical_json`, hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        first: dict[str, int] = {}
        for k, job in enumerate(self.jobs):
            if job.id in first:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            first[job.id] = k
            if job.staleness and self.cluster.one_device:
                raise field_error(f"does not go with cluster.one_device: {ONE_DEVICE}", "jobs", k, "staleness")
            for name, pool in self.cluster.pools.items():
                phase: Phase = getattr(job, name)
                if pool.max_nodes is not None and phase.nodes > pool.max_nodes:
                    problem = f"asks for {phase.nodes} nodes; the {name} pool has at most {pool.max_nodes}"
                    raise field_error(problem, "jobs", k, name, "nodes")
                both = self.cluster.one_device
                memories = (("host_memory_gb", pool.node_memory_gb, "node"), ("device_gb", pool.device_memory_gb, "GPU"))
                for field, limit_gb, what in memories:
                    memory_gb = getattr(phase, field) + (getattr(job.rollout, field) if both else 0.0)
                    if limit_gb is not None and memory_gb > limit_gb * (1 + 1e-9):
                        who = "the job asks for" if both else "asks for"
                        problem = f"{who} {memory_gb:.10g} GB; a {name} {what} has {limit_gb:.10g} GB"
                        raise field_error(problem, "jobs", k, name, field)
            nodes = {name: getattr(job, name).nodes for name in self.cluster.pools}
            if beyond := beyond_quota(job.user, nodes, self.cluster):
                raise field_error(beyond, "jobs", k)
        return self


def _check_defaults(defaults: dict[str, Any], jobs: Any) -> None:
    """Refuse what is wrong with `defaults` itself, under its own path, even where every job overrides it.

    Keys may be missing, and fields that do not go together may come apart under a job: both are for the merged jobs to say.
    """
    try:
        Job.model_validate({**defaults, "id": "defaults"})
    except ValidationError as error:
        for problem in problems(error):
            in_list = any(isinstance(part, int) for part in problem["loc"])  # lists are not merged into
            if problem["type"] != "field_error" and (problem["type"] != "missing" or in_list):
                raise InputError(format_error(problem, Job, "defaults")) from None
    stays = [name for name in STAYS if name in defaults]
    for stay in stays:
        if defaults[stay] is None:
            raise InputError(f"defaults.{stay}: must be a number, not null")
    if len(stays) == 2:
        raise InputError("defaults: takes at most one of iterations and duration_s; both are given")
    for k, job in enumerate(jobs if isinstance(jobs, list) else []):
        for other in STAYS:
            if isinstance(job, dict) and stays and other in job and other not in stays:
                raise InputError(f"jobs[{k}].{other}: does not go with defaults.{stays[0]}; a job has exactly one of the two")


def parse_scenario(data: dict[str, Any], source: str = "scenario", folder: Path = Path()) -> Scenario:
    """Build a scenario from the mapping that a file holds.

    Args:
        data: the file's mapping; `defaults`, if there, is merged under every job.
        source: the name that error messages begin with.
        folder: what the paths of models, lengths and hardware are relative to.

    Raises:
        InputError: one line with the source, the path of the field and what is wrong with its value.
    """
    try:
        merged = merge_defaults(data)
        if "defaults" in data:
            _check_defaults(data["defaults"], data.get("jobs"))
        if _has_models(merged):
            from rollmux_env.timing.filling import fill_in

            merged = fill_in(merged, folder)
        return Scenario.model_validate(merged)
    except ValidationError as error:
        first = problems(error)[0]
        problem = format_error(first, Scenario) + (" (set by defaults)" if only_in_defaults(data, field_of(first)) else "")
    except InputError as error:
        problem = str(error)
    except RecursionError:
        problem = "is nested too deeply"
    raise InputError(f"{one_line(source, 4096)}: {one_line(problem)}")


def _has_models(data: dict[str, Any]) -> bool:
    jobs = data.get("jobs")
    return isinstance(jobs, list) and any(isinstance(job, dict) and job.get("model") is not None for job in jobs)


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Args:
        path: a `.json` file is read as JSON, any other as YAML 1.2.

    Raises:
        InputError: the file cannot be read or is not a scenario; one line.
    """
    return parse_scenario(read_mapping(Path(path)), str(path), Path(path).parent)
