"""Scenario files, version 1: two pools and the jobs that arrive, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/scenario.md explains every key. `load_scenario` merges `defaults` under every job and
returns a `Scenario`; everything else in RollMux starts from one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rollmux_env.errors import InputError
from rollmux_env.reading import describe, merge_defaults, read_mapping

MAX_NODES_OF_A_JOB = 4096


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")
    return value


def _whole(value: Any) -> Any:
    """A count: 3, and 3.0 or 3e0, which YAML 1.2 and JSON Schema take for the same number."""
    _no_bool(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_id(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        raise ValueError(f'must be text: quote it, as in "{value}"')
    return value


Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
NonNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=2**31)]
NodeCount = Annotated[Count, Field(le=MAX_NODES_OF_A_JOB)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Pool(_Model):
    """One of the two pools.

    Attributes:
        gpu: a label; it sets no price.
        gpus_per_node: GPUs of a node.
        usd_per_gpu_hour: price of a GPU, $/h.
        node_memory_gb: host memory of a node, GB; None is unlimited.
        max_nodes: nodes that can be provisioned at once; None is unlimited.
    """

    gpu: str = ""
    gpus_per_node: Count
    usd_per_gpu_hour: NonNegative
    node_memory_gb: NonNegative | None = None
    max_nodes: Count | None = None

    @property
    def usd_per_node_hour(self) -> float:
        """Price of a node, $/h."""
        return self.gpus_per_node * self.usd_per_gpu_hour


class Cluster(_Model):
    """The two pools and what holds for all groups.

    Attributes:
        max_group_size: most jobs in one co-execution group.
        migration_s: pause of a job that is moved to another placement, seconds.
    """

    rollout: Pool
    training: Pool
    max_group_size: Count = 5
    migration_s: NonNegative = 300.0


class Actual(_Model):
    """What really happens, for event replays: worst_case_s * X, X lognormal, drawn per iteration.

    Attributes:
        mean_fraction: mean of X.
        cv: coefficient of variation of X.
        cap: X is at most 1.
    """

    mean_fraction: Positive
    cv: NonNegative = 0.0
    cap: bool = True


class Switch(_Model):
    """Seconds added to a phase: warm when its node last ran another job, cold at the job's first phase in a placement."""

    warm_s: NonNegative = 0.0
    cold_s: NonNegative = 0.0


class Phase(_Model):
    """A job's rollout or training phase.

    Attributes:
        nodes: nodes that the phase asks for.
        worst_case_s: its longest duration on that many nodes, seconds.
        host_memory_gb: host memory that keeps the job resident, GB per node at any number of nodes.
        actual: what really happens, for event replays.
        switch: seconds of warm and cold starts, for event replays.
    """

    nodes: NodeCount = 1
    worst_case_s: Positive
    host_memory_gb: NonNegative = 0.0
    actual: Actual | None = None
    switch: Switch = Switch()


def _node_keys(value: Any) -> Any:
    """by_nodes: integer keys, or their strings (JSON has no others)."""
    if not isinstance(value, dict):
        return value
    keys: dict[Any, Any] = {}
    for key, seconds in value.items():
        number = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{describe(key)} is not a number of nodes")
        if number in keys:
            raise ValueError(f"{number} nodes are given twice")
        keys[number] = seconds
    return dict(sorted(keys.items()))


class Training(Phase):
    """The training phase.

    Attributes:
        by_nodes: {nodes: seconds} on more nodes than `nodes`, where the training pool of a group is larger.
    """

    by_nodes: Annotated[dict[Count, Positive], BeforeValidator(_node_keys)] = {}

    @model_validator(mode="after")
    def _larger(self) -> Training:
        for key in self.by_nodes:
            if key <= self.nodes:
                raise ValueError(f"by_nodes: {key} is not above the {self.nodes} nodes of the phase")
        return self


class Drift(_Model):
    """Factors on the durations from an iteration on (they may pass the worst case)."""

    iteration: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**31)]
    rollout: Positive = 1.0
    training: Positive = 1.0


class Colocated(_Model):
    """The job run the co-located way: both phases, one after the other, on training nodes of its own."""

    nodes: NodeCount
    rollout_s: Positive
    training_s: Positive


def _ordered(drift: tuple[Drift, ...]) -> tuple[Drift, ...]:
    if any(a.iteration >= b.iteration for a, b in itertools.pairwise(drift)):
        raise ValueError("must be in order of iteration, each iteration once")
    return drift


class Job(_Model):
    """An RL post-training job: a cycle of rollout, training and sync.

    Attributes:
        id: its name, unique in a scenario.
        arrival_s: when it arrives, seconds.
        iterations: it leaves after so many iterations ...
        duration_s: ... or so many seconds after its admission; exactly one of the two.
        slo: longest tolerated iteration time, as a multiple of `solo_s`.
        sync_s: weights back to the rollout nodes, seconds; delays the job, occupies no node.
    """

    id: Annotated[str, BeforeValidator(_text_id), Field(pattern=r"\A[A-Za-z0-9._-]{1,64}\z")]
    arrival_s: NonNegative
    iterations: Count | None = None
    duration_s: Positive | None = None
    slo: Annotated[Number, Field(ge=1)]
    rollout: Phase
    training: Training
    sync_s: NonNegative = 0.0
    drift: Annotated[tuple[Drift, ...], Field(strict=False), AfterValidator(_ordered)] = ()
    colocated: Colocated | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_stay(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in ("iterations", "duration_s"):
                if key in data and data[key] is None:
                    raise ValueError(f"{key} must be a number")
            if ("iterations" in data) == ("duration_s" in data):
                found = "both are given" if "iterations" in data else "neither is given"
                raise ValueError(f"needs exactly one of iterations and duration_s; {found}")
        return data

    @cached_property
    def solo_s(self) -> float:
        """T_solo: seconds of an iteration of the job alone on its own nodes."""
        return self.rollout.worst_case_s + self.training.worst_case_s + self.sync_s

    def training_s(self, nodes: int) -> float:
        """Worst-case seconds of the training phase on a pool of `nodes` training nodes."""
        seconds = self.training.worst_case_s
        for key, value in self.training.by_nodes.items():
            if key <= nodes:
                seconds = value
        return seconds


class Scenario(_Model):
    """A two-cluster placement problem: the cluster and the jobs, in the file's order."""

    version: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1)]
    cluster: Cluster
    jobs: Annotated[tuple[Job, ...], Field(strict=False, min_length=1)]

    def canonical_json(self) -> str:
        """The scenario with defaults filled in, keys sorted: the same text for the same problem."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """Hash of `canonical_json`, hexadecimal."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        seen: dict[str, int] = {}
        for k, job in enumerate(self.jobs):
            if job.id in seen:
                raise ValueError(f"jobs[{k}].id: '{job.id}' is also the id of jobs[{seen[job.id]}]")
            seen[job.id] = k
            for name in ("rollout", "training"):
                pool: Pool = getattr(self.cluster, name)
                phase: Phase = getattr(job, name)
                if pool.max_nodes is not None and phase.nodes > pool.max_nodes:
                    raise ValueError(f"jobs[{k}].{name}.nodes: {phase.nodes} nodes; the pool has at most {pool.max_nodes}")
                if pool.node_memory_gb is not None and phase.host_memory_gb > pool.node_memory_gb * (1 + 1e-9):
                    raise ValueError(
                        f"jobs[{k}].{name}.host_memory_gb: {phase.host_memory_gb:g} GB; a node has {pool.node_memory_gb:g} GB"
                    )
        return self


def parse_scenario(data: dict[str, Any], source: str = "scenario") -> Scenario:
    """Build a scenario from the mapping that a file holds.

    Args:
        data: the file's mapping; `defaults`, if there, is merged under every job.
        source: the name that error messages begin with.

    Raises:
        InputError: one line with the source, the path of the field and what is wrong with its value.
    """
    try:
        return Scenario.model_validate(merge_defaults(data))
    except ValidationError as error:
        raise InputError(f"{source}: {_one_line(error)}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Args:
        path: a `.json` file is read as JSON, any other as YAML 1.2.

    Raises:
        InputError: the file cannot be read or is not a scenario; one line.
    """
    return parse_scenario(read_mapping(Path(path)), str(path))


def _one_line(error: ValidationError) -> str:
    """The first of pydantic's errors as `path.to[0].field: what is wrong (value)`."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"] if part != "[key]").lstrip(".")
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        text = "is missing"
    elif first["type"] == "extra_forbidden":
        text = "is not a key of this file format"
    elif first["type"] != "value_error":
        text = f"{text[0].lower()}{text[1:]}, not {describe(first['input'])}"
    return f"{path}: {text}" if path else text
