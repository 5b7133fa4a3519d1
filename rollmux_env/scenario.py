"""Scenario files, version 1: pools of nodes and the jobs that arrive, as checked and frozen models.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from rollmux_env.errors import InputError
from rollmux_env.fields import (
    AtLeastOne,
    Count,
    FileModel,
    Index,
    JobId,
    NodeCount,
    NonNegative,
    PoolName,
    Positive,
    Priority,
    Staleness,
    UserName,
    Version,
    by_name,
    stated,
    whole,
)
from rollmux_env.network_keys import Network, broken_sync
from rollmux_env.queue_keys import Budget, Quota, beyond_quota, queue_key
from rollmux_env.reading import merge_defaults, only_in_defaults, read_mapping
from rollmux_env.timing.alone import alone_s
from rollmux_env.timing.described import Lengths, Model, Timing
from rollmux_env.validation_errors import describe, field_error, field_of, format_error, one_line, problems

MOST_SHAPES = 16
STAYS = ("iterations", "duration_s")
_KINDS_OF_JOB_FILES = ("task", "class", "attach", "command")
Side = Literal["rollout", "training"]
SIDES: tuple[Side, Side] = ("rollout", "training")
ONE_DEVICE = "a device runs one phase after the other"


class Pool(FileModel):
    """Nodes of one kind."""

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
    """The pools and what holds for all groups."""

    rollout: Annotated[Pool | None, Field(exclude_if=lambda pool: pool is None)] = None
    """Short for the pool of this name, which generates responses. With one_device it may be left out, and counts for nothing."""
    training: Annotated[Pool | None, Field(exclude_if=lambda pool: pool is None)] = None
    """Short for the pool of this name, which trains on them."""
    by_name: Annotated[dict[PoolName, Pool], Field(alias="pools", exclude_if=lambda pools: not pools)] = Field(default={})
    """All pools, in place of rollout and training: {name: {gpu, gpus_per_node, ...}}."""
    max_group_size: Count = 5
    """Most jobs in one co-execution group."""
    migration_s: NonNegative = 300.0
    """Pause of a job that is moved to another placement (checkpoint and restart), seconds."""
    # The default is not written, so that what has no such key keeps its hash.
    one_device: Annotated[bool, Field(exclude_if=lambda one_device: not one_device)] = False
    """Whether training is the only pool: the nodes of a group run the rollout and the training of each member in turn."""
    quotas: Annotated[dict[UserName, Quota], Field(exclude_if=lambda quotas: not quotas)] = Field(default={})
    """The most that the jobs of a user may hold at once: {user: {nodes, usd_per_hour}}."""
    network: Annotated[Network | None, Field(exclude_if=lambda network: network is None)] = None
    """The link between the pools, which all syncs share: {link_gbps}; null: no sync is in another's way."""

    @model_validator(mode="after")
    def _all_pools(self) -> Cluster:
        short = [name for name in SIDES if name in self.model_fields_set]
        for name in short:
            if getattr(self, name) is None:
                raise field_error("has no value (null); it must be a mapping", name)
        if "by_name" in self.model_fields_set:
            if short:
                raise field_error(f"does not go with cluster.{short[0]}, which is short for a pool of that name", "pools")
            if not self.by_name:
                raise field_error("is empty", "pools")
            other = next((name for name in self.by_name if name not in SIDES), None)
            if self.one_device and other is not None:
                raise field_error("does not go with one_device, where training is the only pool", "pools", other)
        wanted = ("training",) if self.one_device else () if self.by_name else SIDES
        if missing := [name for name in wanted if name not in (*short, *self.by_name)]:
            raise field_error("is missing", *(["pools"] if self.by_name else []), missing[0])
        if self.one_device and self.network is not None:
            raise field_error("does not go with one_device: there are no two pools to link", "network")
        return self

    @model_serializer(mode="wrap")
    def _in_short(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Pools as they are short, where they can be: two ways to write the same are the same text, and have the same hash."""
        data: dict[str, Any] = serialize(self)
        if pools := data.pop("by_name", {}) or data.pop("pools", {}):
            data |= pools if set(pools) <= set(SIDES) else {"pools": pools}
        if self.one_device and not info.exclude_defaults and not info.exclude_unset:
            data.setdefault("rollout", _NOBODYS.model_dump(exclude_none=True))
        return data

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools that there are, by name; their numbers in `rollmux_env.kernel` are in this order."""
        pools = self.by_name or {name: pool for name in SIDES if (pool := getattr(self, name)) is not None}
        return {"training": pools["training"]} if self.one_device else pools

    @property
    def sides(self) -> tuple[Side, ...]:
        """Which sides of a group have nodes."""
        return ("training",) if self.one_device else SIDES

    def with_pools(self, pools: Mapping[str, Pool]) -> Cluster:
        """The same cluster with other pools in place of those of their names."""
        return self.model_copy(update={"by_name": {**self.by_name, **pools}} if self.by_name else {**pools})


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

    pool: Annotated[PoolName, Field(exclude_if=lambda pool: pool == "rollout")] = "rollout"
    """Name of the pool whose nodes it runs on."""
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


def _absent(value: object) -> bool:
    return value is None


class Training(Phase):
    """A job's training phase."""

    pool: Annotated[PoolName, Field(exclude_if=lambda pool: pool == "training")] = "training"
    """Name of the pool whose nodes it runs on."""
    by_nodes: Annotated[dict[Count, Positive], BeforeValidator(_node_keys)] = Field(default={})
    """Its longest duration, seconds, on more nodes than `nodes`: {number of nodes: seconds}."""

    @model_validator(mode="after")
    def _larger(self) -> Training:
        for key in self.by_nodes:
            if key <= self.nodes:
                raise field_error(f"must be above training.nodes, which is {self.nodes}", "by_nodes", key)
        return self

    def seconds_on(self, nodes: int) -> float:
        """Worst-case seconds on a pool of `nodes` training nodes."""
        seconds = self.worst_case_s
        for key, value in self.by_nodes.items():
            if key <= nodes:
                seconds = value
        return seconds


class PhaseShape(FileModel):
    """What a shape says of a rollout: the keys that it names take the place of the job's own."""

    pool: Annotated[PoolName | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Name of the pool whose nodes it runs on."""
    nodes: Annotated[NodeCount | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Nodes that the phase asks for."""
    worst_case_s: Annotated[Positive | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Its longest duration on that many nodes, seconds."""
    host_memory_gb: Annotated[NonNegative | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Host memory that keeps the job resident, GB per node."""
    device_gb: Annotated[NonNegative | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Memory that the job keeps on each GPU of a node between its phases, GB."""
    actual: Annotated[Actual | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """What really happens, for event replays."""
    switch: Annotated[Switch | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """Times of warm and cold starts, for event replays."""


class TrainingShape(PhaseShape):
    """What a shape says of a training: the keys that it names take the place of the job's own, and of `by_nodes` in any case."""

    by_nodes: Annotated[
        dict[Count, Positive] | None, BeforeValidator(_node_keys), BeforeValidator(stated), Field(exclude_if=_absent)
    ] = None
    """Its longest duration, seconds, on more nodes than `nodes`: {number of nodes: seconds}; without it, none."""


class Shape(FileModel):
    """Another way to run a job, on other nodes."""

    rollout: Annotated[PhaseShape | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """What is different about the rollout."""
    training: Annotated[TrainingShape | None, BeforeValidator(stated), Field(exclude_if=_absent)] = None
    """What is different about the training."""


class Phases(NamedTuple):
    """Both phases of a job in one of its shapes."""

    rollout: Phase
    training: Training


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


def reshaped(rollout: Phase, training: Training, shape: Shape) -> Phases:
    """The phases of a job in another shape. One that says anything of the training has no `by_nodes` but its own."""
    more_rollout, more_training = _named(shape.rollout), _named(shape.training)
    if more_training:
        more_training = {"by_nodes": {}, **more_training}
    return Phases(rollout.model_copy(update=more_rollout), training.model_copy(update=more_training))


def _named(phase: PhaseShape | None) -> dict[str, Any]:
    """The keys that a shape names of a phase, with their values."""
    return {} if phase is None else {name: getattr(phase, name) for name in phase.model_fields_set}


def check_shapes(job: Job) -> None:
    """Refuse shapes of a job that say nothing new, and those that are none.

    Raises:
        PydanticCustomError: of `field_error`, with a path below the job's.
    """
    if len(job.shapes) > MOST_SHAPES:
        raise field_error(f"are {len(job.shapes)}; a job has at most {MOST_SHAPES}", "shapes")
    known: list[Phases] = [job.phases()]
    for k, shape in enumerate(job.shapes):
        if not _named(shape.rollout) and not _named(shape.training):
            raise field_error("is empty: it names no key of rollout or training", "shapes", k)
        for name in ("rollout", "training"):
            if job.timing is not None and "actual" in _named(getattr(shape, name)):
                problem = "does not go with a model, whose durations are drawn from its lengths"
                raise field_error(problem, "shapes", k, name, "actual")
        phases = job.phases(k + 1)
        for key in phases.training.by_nodes:
            if key <= phases.training.nodes:
                problem = f"must be above training.nodes, which is {phases.training.nodes}"
                raise field_error(problem, "shapes", k, "training", "by_nodes", key)
        if phases in known:
            same = known.index(phases)
            whose = f"is the same as shapes[{same - 1}]" if same else "changes nothing: it is the job as it is written"
            raise field_error(whose, "shapes", k)
        known.append(phases)


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
    sync_gb: Annotated[Positive | None, Field(exclude_if=lambda sync_gb: sync_gb is None)] = None
    """What a sync takes over the link of `cluster.network`, GB; null: it fills the link for `sync_s`."""
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
    # The default is not written, so that what has no such key keeps its hash.
    shapes: Annotated[
        tuple[Shape, ...],
        Field(strict=False, json_schema_extra={"maxItems": MOST_SHAPES}, exclude_if=lambda shapes: not shapes),
    ] = ()
    """Other ways to run it, numbered from 1; the job as it is written is number 0. At most 16."""
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

    @model_validator(mode="after")
    def _shapes_differ(self) -> Job:
        check_shapes(self)
        return self

    @property
    def solo_s(self) -> float:
        """T_solo: seconds of an iteration of the job alone on its own nodes."""
        return alone_s(self.rollout.worst_case_s, self.training.worst_case_s, self.sync_s, self.staleness)

    def training_s(self, nodes: int) -> float:
        """Worst-case seconds of the training phase, as the job is written, on a pool of `nodes` training nodes."""
        return self.training.seconds_on(nodes)

    def phases(self, shape: int = 0) -> Phases:
        """Both phases in a shape; 0 is the job as it is written, k the k-th of `shapes`."""
        if not shape:
            return Phases(self.rollout, self.training)
        return reshaped(self.rollout, self.training, self.shapes[shape - 1])

    def known_anew(self, shape: int, phase: Literal["rollout", "training"], **known: float) -> Job:
        """The job with other figures of one phase in a shape, by the names of `Phase`; other shapes that name them keep theirs."""
        if not shape:
            return self.model_copy(update={phase: getattr(self, phase).model_copy(update=known)})
        one = self.shapes[shape - 1]
        part: PhaseShape | None = getattr(one, phase)
        if part is None:
            part = PhaseShape() if phase == "rollout" else TrainingShape(by_nodes=self.training.by_nodes)
        other = one.model_copy(update={phase: part.model_copy(update=known)})
        return self.model_copy(update={"shapes": (*self.shapes[: shape - 1], other, *self.shapes[shape:])})


class Scenario(FileModel):
    """A placement problem: the cluster and the jobs, in the file's order."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster
    """The pools and what holds for all groups."""
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
            if broken := broken_sync(job, self.cluster.network):
                raise field_error(broken[1], "jobs", k, broken[0])
            for number in range(1 + len(job.shapes)):
                where = ("jobs", k, "shapes", number - 1) if number else ("jobs", k)
                asked = check_room(self.cluster, job.phases(number), where)
                if not number and (beyond := beyond_quota(job.user, asked, self.cluster)):
                    raise field_error(beyond, "jobs", k)
        return self


def check_room(cluster: Cluster, phases: Phases, where: tuple[str | int, ...]) -> dict[str, int]:
    """Refuse a job in a shape that the empty cluster could not hold.

    Args:
        where: path of the job or the shape.

    Returns:
        The nodes that it asks for, by name of the pool.

    Raises:
        PydanticCustomError: of `field_error`.
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
    kind = next((key for key in _KINDS_OF_JOB_FILES if _has_key(data, key)), None)
    hint = f"; {kind} is a key of job files, which `rollmux run` reads" if kind else ""
    raise InputError(f"{one_line(source, 4096)}: {one_line(problem)}{hint}")


def _has_key(data: dict[str, Any], key: str) -> bool:
    """Whether a job of a file, or the defaults, has a key."""
    jobs = data.get("jobs")
    return any(isinstance(job, dict) and key in job for job in (*(jobs if isinstance(jobs, list) else ()), data.get("defaults")))


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
