"""The kinds of jobs that real runs execute, as checked and frozen models; docs/reference/jobs.md explains their keys.

One key of a job says its kind. With `task` it is the built-in job, GRPO on a model; with `class` it is a class of the user; with
`attach` its owner starts it; with `command` a service starts it. The last two ask for permits over HTTP. Each kind has its own keys
beside the common ones, and no others. The texts below the fields are also the tables of docs/reference/jobs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

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
    Unwritten,
    UserName,
    by_name,
    whole,
)
from rollmux_env.keys.cluster import SIDES, Cluster, Side
from rollmux_env.keys.every_job import Clash, EveryJob, ShapedJob, StaleJob
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.keys.queue import Budget, Estimate
from rollmux_env.keys.shapes import Phases, Shape, named_keys
from rollmux_env.scheduler.facts import PhaseOfShape
from rollmux_env.suggestions import did_you_mean, keys_at
from rollmux_env.validation_errors import describe, field_error, field_of, problems
from runtime.jobs.grpo_spec import TINY, Algorithm, EvaluationSpec, ModelSpec, Named, RewardsSpec, SyncSpec, TaskSpec
from runtime.jobs.named import located
from runtime.jobs.phase_spec import EngineSpec, NodeNames, PhaseSpec, ProfileSpec, RolloutSpec, StatedPhase, TrainingSpec, Word

NO_POOL = "is of no use to a real run, which has the pools rollout and training"
_NO_SHAPE_KEYS = {
    "pool": NO_POOL,
    "actual": "is of no use to a real run; it is for event replays",
    "switch": "is of no use to a real run, which takes those of the profile",
}
_RATE_OF_TINY, _RATE = 1e-3, 1e-6  # learning rates; the second as in TRL's GRPO


def _no_checkpoints(value: Any) -> Any:
    return {"every": "none"} if value is None or value == "none" else value


def _interval(value: Any) -> Any:
    value = whole(value)
    if value in ("auto", "none") or (type(value) is int and 1 <= value <= 2**31):
        return value
    raise ValueError(f"must be a whole number of iterations from 1, auto or none, not {describe(value)}")


class CheckpointSpec(FileModel):
    """Writing of a job's state to the disk."""

    every: Annotated[Annotated[int, Field(ge=1, le=2**31)] | Literal["auto", "none"], BeforeValidator(_interval)] = "auto"
    """Number of iterations between checkpoints; `auto` spends at most a twentieth of the time on them.

    `checkpoint: none` is short for `none`.
    """
    keep: Count = 2
    """Number of checkpoints that stay on the disk."""

    @property
    def is_wanted(self) -> bool:
        """Whether checkpoints are written."""
        return self.every != "none"


class CommonJob(EveryJob):
    """Keys of jobs of every kind."""

    id: JobId
    """Name of the job, unique in the file; quote one that reads as a number. `.` and `..` are not allowed."""
    arrival_s: NonNegative = 0.0
    """Time of arrival, seconds from the start of the run."""
    iterations: Count
    """Number of iterations of the job."""
    slo: AtLeastOne
    """Longest acceptable iteration time, multiple of the solo time."""
    rollout: PhaseSpec = PhaseSpec()
    """Requirements on the rollout pool."""
    training: PhaseSpec = PhaseSpec()
    """Requirements on the training pool."""
    priority: Priority = 0
    """Priority in the queue, higher first; equal ones in order of arrival."""
    user: UserName = ""
    """Name of the job's user, for quotas and accounts."""
    label: Unwritten[UserName] = ""
    """Label of jobs of similar length, for the orders `gittins` and `learned`; `class` of scenario files."""
    budget: Budget | None = None
    """Limit of cost and time; the job ends with the iteration that exhausts either. null is no limit."""
    weight: Positive = 1.0
    """Relative value of an hour of the job's waiting or running."""
    estimate: Estimate | None = None
    """Length that the owner states."""
    movable: bool = True
    """Whether a policy may move the job while it runs; never with workers and without checkpoints."""
    parkable: bool | None = None
    """Whether a policy may park the job; null is as `movable`."""
    seed: Index = 0
    """Seed of the weights of `tiny`, of the order of data, and of sampling."""
    folder: str = ""
    """Folder of relative files and modules; by default that of the job file."""

    @model_validator(mode="after")
    def _fits(self) -> CommonJob:
        for problem, *path in self._clashes():
            raise field_error(problem, *path)
        return self

    def _clashes(self) -> Iterator[Clash]:
        """Yield the problems of keys that do not go together."""
        yield from ()

    def own_phases(self) -> Phases:
        """Return both phases with the keys of scenario files that the job states: nodes, and perhaps seconds and memory."""
        rollout, training = (
            {key: value for key, value in phase if key in Phase.model_fields} for phase in (self.rollout, self.training)
        )
        return Phases(Phase.model_construct(**rollout), Training.model_construct(**training))

    def nodes_of_shapes(self) -> Iterator[tuple[str, Side, int]]:
        """Yield path, side and number of nodes of the job as written, and of each of its shapes."""
        for number in self.shape_numbers:
            where = f"shapes[{number - 1}]." if number else ""
            for side, nodes in self.nodes_in(number).items():
                yield f"{where}{side}.nodes", side, nodes

    def path(self, name: str) -> Path:
        """Return the path of a file that the job names, relative to `folder`."""
        return located(self.folder, name)

    def has_done(self, iterations: int) -> bool:
        """Return whether the job is over after a number of iterations."""
        return iterations >= self.iterations

    @property
    def estimated_phases(self) -> frozenset[PhaseOfShape]:
        """Phases in shapes whose worst case is not stated, so that it is estimated and then measured."""
        return frozenset()

    @property
    def nodes_named(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes on which the job already is, by pool; empty if the job may be placed."""
        return {}

    @property
    def measured_iterations(self) -> int:
        """Number of first iterations in which an attached job is measured; 0 if its worst case is stated, or profiled."""
        return 0

    @property
    def reports_sync(self) -> bool:
        """Whether the job's owner reports when the new weights are on the rollout nodes."""
        return False

    @property
    def top_p(self) -> float:
        """Probability of the smallest set of tokens that the job's engines sample from; 1 if it is not known."""
        return 1.0


class RayJob(CommonJob, ShapedJob):
    """A job whose processes the runtime starts itself, on Ray."""

    is_attached: ClassVar[Literal[False]] = False
    repeats = ("has the nodes of", "has the nodes of")

    rollout: EngineSpec = EngineSpec()
    """Requirements on the rollout pool."""
    training: PhaseSpec = PhaseSpec()
    """Requirements on the training pool."""
    shapes: Unwritten[Annotated[tuple[Shape, ...], Field(strict=False)]] = ()
    """Other numbers of nodes for the job, numbered from 1. Not with `one_device`."""
    checkpoint: Annotated[CheckpointSpec, BeforeValidator(_no_checkpoints)] = CheckpointSpec()
    """Checkpoints of the job; `none` is short for `{every: none}`."""

    def clash(self, cluster: Cluster) -> Clash | None:
        """Return the first thing about the job that does not go with a cluster, or None."""
        if cluster.one_device and self.shapes:
            return "do not go with cluster.one_device, where a job has all nodes of its group", "shapes"
        return super().clash(cluster)

    def what_differs(self, shape: int) -> object:
        """Return the values that distinguish a shape from the others."""
        return self.nodes_in(shape)

    def shape_clashes(self, shape: int) -> Iterator[Clash]:
        """Yield the problems of one of `shapes`, numbered from 1."""
        for side in SIDES:
            for key in named_keys(getattr(self.shapes[shape - 1], side)):
                if key in _NO_SHAPE_KEYS:
                    yield _NO_SHAPE_KEYS[key], side, key

    @property
    def estimated_phases(self) -> frozenset[PhaseOfShape]:
        """Phases in shapes whose worst case is not stated, so that it is estimated and then measured."""
        return frozenset(
            (number, side)
            for number, shape in enumerate(self.shapes, 1)
            for side in SIDES
            if self.nodes_in(number)[side] != self.nodes_in(0)[side] and "worst_case_s" not in named_keys(getattr(shape, side))
        )


class TaskJob(RayJob, StaleJob):
    """A built-in job: GRPO on a language model."""

    rollout: RolloutSpec = RolloutSpec()
    """Requirements on the rollout pool."""
    training: TrainingSpec = TrainingSpec()
    """Requirements on the training pool."""
    staleness: Unwritten[Staleness] = 0
    """Largest age of a trained sample's weights, versions; 0 is on-policy, more is asynchronous."""
    model: Annotated[ModelSpec, BeforeValidator(by_name)] = ModelSpec()
    """Language model; a text is short for its `name`."""
    task: Annotated[TaskSpec, BeforeValidator(by_name)]
    """Source of prompts and rewards."""
    algorithm: Algorithm = Algorithm()
    """Settings of GRPO."""
    rewards: RewardsSpec = RewardsSpec()
    """Computation of rewards."""
    evaluation: EvaluationSpec | None = None
    """Periodic evaluation, for the task `jsonl`; null is none."""
    sync: SyncSpec = SyncSpec()
    """Transfer of new weights to the rollout nodes."""

    def _clashes(self) -> Iterator[Clash]:
        rollout, task = self.rollout, describe(self.task.name)
        together = self.algorithm.max_prompt_tokens + self.algorithm.max_tokens
        longest = rollout.engine_options.max_model_len
        if longest is not None and longest < together:
            problem = f"is {longest}; max_prompt_tokens and max_tokens of the algorithm are {together} together"
            yield problem, "rollout", "engine_options", "max_model_len"
        if rollout.sizes and self.is_asynchronous and not rollout.interruptible:
            problem = "with a staleness need `interruptible`: engines of another size go on with weights that have come meanwhile"
            yield problem, "rollout", "sizes"
        if rollout.interruptible and not self.is_asynchronous:
            yield "goes with a staleness: on-policy no new weights come in the middle of a rollout", "rollout", "interruptible"
        if self.evaluation is not None and self.task.name != "jsonl":
            yield f"goes with the task jsonl, not with {task}", "evaluation"
        if self.rewards.workers is not None and self.task.is_cheap:
            yield f"are of no use to the task {task}, whose rewards take microseconds beside the engine", "rewards", "workers"

    @property
    def settings(self) -> Algorithm:
        """`algorithm` with its learning rate, which depends on the model if the job gives none."""
        usual = _RATE_OF_TINY if self.model.name == TINY else _RATE
        return self.algorithm.model_copy(update={"learning_rate": self.algorithm.learning_rate or usual})

    @property
    def top_p(self) -> float:
        """Probability of the smallest set of tokens that the job's engines sample from."""
        return self.algorithm.top_p


class ClassJob(RayJob):
    """A job of a user's class. It is on-policy, because the runtime does not know its weights."""

    staleness: ClassVar[int] = 0
    is_asynchronous: ClassVar[bool] = False

    job_class: Named = Field(alias="class")
    """Class of the job as module:Class, with methods that are marked as phases."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the class."""

    def shape_clashes(self, shape: int) -> Iterator[Clash]:
        """Yield the problems of one of `shapes`, numbered from 1."""
        yield from super().shape_clashes(shape)
        for number, side in sorted(self.estimated_phases):
            if number == shape:
                yield "is missing; on other nodes than its own only a job with a task can be predicted", side, "worst_case_s"


class AttachedJob(CommonJob, StaleJob):
    """A job whose processes the runtime does not start on Ray. It asks for permits over HTTP, and states what it needs."""

    is_attached: ClassVar[Literal[True]] = True
    shapes: ClassVar[tuple[Shape, ...]] = ()
    kind: ClassVar[str]

    rollout: StatedPhase = StatedPhase()
    """Requirements on the rollout pool."""
    training: StatedPhase = StatedPhase()
    """Requirements on the training pool."""
    movable: bool = False
    """Whether the service may ask the job to attach again on other nodes."""
    staleness: Unwritten[Staleness] = 0
    """Largest age of a trained sample's weights, versions; 0 is on-policy, more is asynchronous."""
    profile: Annotated[ProfileSpec | None, Field(exclude_if=lambda value: value is None)] = None
    """Measurement, instead of `worst_case_s` of both phases."""
    sync_s: Unwritten[NonNegative] = 0.0
    """Longest sync of weights, seconds; 0: the job reports none."""
    eval_s: Annotated[Positive | None, Field(exclude_if=lambda value: value is None)] = None
    """Longest evaluation between rollouts, seconds, part of the rollout's worst case."""

    def _clashes(self) -> Iterator[Clash]:
        for side in SIDES:
            stated = getattr(self, side).worst_case_s is not None
            if self.profile is None and not stated:
                yield f"is missing; a job with {self.kind} states it, or has a profile", side, "worst_case_s"
            if self.profile is not None and stated:
                yield "is measured where there is a profile; give one of the two", side, "worst_case_s"
        if self.measured_iterations >= self.iterations:
            yield f"must be less than iterations, which is {self.iterations}", "profile", "iterations"

    def has_done(self, iterations: int) -> bool:
        """Return False: the owner says when the job is over."""
        return False

    @property
    def measured_iterations(self) -> int:
        """Number of first iterations in which the job is measured; 0 if it states its worst case."""
        return self.profile.iterations if self.profile is not None else 0

    @property
    def reports_sync(self) -> bool:
        """Whether the job's owner reports when the new weights are on the rollout nodes."""
        return self.sync_s > 0


class OwnersJob(AttachedJob):
    """A job that its owner starts with any launcher."""

    kind = "attach"

    attach: bool
    """`true`: the owner starts the job, under any launcher, and attaches it to a service."""
    nodes: Annotated[NodeNames | None, Field(exclude_if=lambda value: value is None)] = None
    """Nodes on which the job already is; null if the service places it. Not with `profile`."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_nodes_as_named(cls, data: Any) -> Any:
        filled, names = {**data}, data.get("nodes")
        for side in SIDES:
            phase, named = data.get(side, {}), names.get(side) if isinstance(names, dict) else None
            if isinstance(phase, dict) and "nodes" not in phase and isinstance(named, list | tuple) and named:
                filled[side] = {**phase, "nodes": len(named)}
        return filled

    @property
    def nodes_named(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes on which the job already is, by pool; empty if the job may be placed."""
        return {} if self.nodes is None else {"rollout": self.nodes.rollout, "training": self.nodes.training}

    def _clashes(self) -> Iterator[Clash]:
        if self.profile is not None and self.nodes is not None:
            yield "does not go with nodes, whose group has to be known at once", "profile"
        yield from super()._clashes()
        for side, names in self.nodes_named.items():
            if len(set(names)) < len(names):
                yield "names a node twice", "nodes", side
            if names and (asks := getattr(self, side).nodes) != len(names):
                yield f"is {asks}; nodes.{side} names {len(names)}", side, "nodes"


class CommandJob(AttachedJob):
    """A job that the service starts as a command, and that then attaches to the service."""

    kind = "command"

    command: Annotated[tuple[Word, ...], Field(strict=False, min_length=1)]
    """Words of the command that the service starts; relative files are those of `folder`."""


KINDS: dict[str, type[CommonJob]] = {"task": TaskJob, "class": ClassJob, "attach": OwnersJob, "command": CommandJob}
"""Models of the kinds of jobs, by the key that says the kind."""


def for_its_kind(defaults: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return those defaults that apply to a job of a file: without the keys that only other kinds have."""
    kinds = _kinds_of(job)
    return _without_others(defaults, kinds[0], lambda _: False) if len(kinds) == 1 else defaults


def model_of(entry: Mapping[str, Any]) -> type[CommonJob]:
    """Return the model for the kind of an entry of a job file, or that of built-in jobs if the entry says none."""
    return KINDS[(*_kinds_of(entry), "task")[0]]


def _kinds_of(entry: Mapping[str, Any]) -> list[str]:
    return [kind for kind in KINDS if entry.get(kind) not in (None, False)]


def _kinds_with(path: tuple[str | int, ...]) -> list[str]:
    """Return the kinds whose jobs have a key."""
    return [kind for kind, model in KINDS.items() if path[-1] in keys_at(model, path[:-1])]


def _without_others(entry: dict[str, Any], kind: str, keeps: Callable[[Any], bool], *path: str) -> dict[str, Any]:
    """Return a mapping of an entry without the keys that only other kinds have.

    Args:
        entry: The mapping.
        kind: Kind of the job.
        keeps: Function of the value of such a key that returns whether the key stays.
        path: Path of the mapping in the job.
    """
    own = keys_at(KINDS[kind], path)
    return {
        key: _without_others(value, kind, keeps, *path, key) if key in own and isinstance(value, dict) else value
        for key, value in entry.items()
        if key in own or keeps(value) or not _kinds_with((*path, key))
    }


def _of_its_kind(data: Any, _: ValidatorFunctionWrapHandler) -> Any:
    """Validate a mapping as a job of the kind that it says. Keys of other kinds are refused."""
    if isinstance(data, CommonJob):
        return data
    if not isinstance(data, dict):
        return CommonJob.model_validate(data)  # which says that it must be a mapping
    kinds = _kinds_of(data)
    kind = (*kinds, "task")[0]
    try:
        job = KINDS[kind].model_validate(_without_others(data, kind, lambda value: value not in (None, False)))
    except ValidationError as error:
        problem = problems(error)[0]
        path = field_of(problem)
        having = _kinds_with(path) if problem["type"] == "extra_forbidden" else []
        if not having and (kinds or problem["type"] == "extra_forbidden"):
            raise
        if len(kinds) == 1:
            which = " or ".join(filter(None, (", ".join(having[:-1]), having[-1])))
            raise field_error(f"is a key of jobs with {which}, not with {kind}", *path) from None
    if len(kinds) != 1:
        meant = next(filter(None, (did_you_mean(key, KINDS) for key in data if not _kinds_with((key,)))), "")
        which = f"none is given{meant}" if not kinds else f"{' and '.join(kinds)} are given"
        raise field_error(f"needs exactly one of task, class, attach and command; {which}")
    return job


JobSpec = Annotated[TaskJob | ClassJob | OwnersJob | CommandJob, WrapValidator(_of_its_kind)]
"""Type of a job of a job file."""


_ORDER = (
    *(
        "id",
        "arrival_s",
        "iterations",
        "slo",
        "rollout",
        "training",
        "shapes",
        "priority",
        "user",
        "label",
        "budget",
        "weight",
        "estimate",
    ),
    *("staleness", "movable", "parkable", "checkpoint", "seed", "model", "task", "algorithm", "rewards", "evaluation", "sync"),
    *("class", "options", "folder"),
    *("attach", "command", "nodes", "profile", "sync_s", "eval_s"),
)


def dump_job(spec: CommonJob) -> dict[str, Any]:
    """Return the entry of a job with the keys that its file gives, in the same order for all kinds."""
    entry = spec.model_dump(mode="json", exclude_none=True, exclude_unset=True, by_alias=True)
    return {key: entry[key] for key in _ORDER if key in entry}


@cache
def _adapter() -> TypeAdapter[JobSpec]:
    return TypeAdapter(JobSpec)


def job_of(entry: Mapping[str, Any]) -> JobSpec:
    """Return the job of an entry of a job file.

    Raises:
        ValidationError: If the entry is not valid; `model_of` returns the model for its message.
    """
    return _adapter().validate_python(entry)
