"""Keys of a job in scenario files: its stay, its phases, and its place in the queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

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
    Unwritten,
    UserName,
    by_name,
)
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.keys.cluster import SIDES, Cluster, Side
from rollmux_env.keys.every_job import Clash, ShapedJob, StaleJob
from rollmux_env.keys.model import Lengths, Model, Timing
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.keys.queue import Budget, Estimate
from rollmux_env.keys.shapes import MAX_SHAPES, Phases, PhaseShape, Shape, TrainingShape, named_keys
from rollmux_env.validation_errors import field_error

STAYS = ("iterations", "duration_s")


class Drift(FileModel):
    """Factors of the durations from an iteration on, for event replays; they may exceed the worst case."""

    iteration: Index
    """First iteration, counted from 0, with these factors."""
    rollout: Positive = 1.0
    """Factor of the rollout's duration."""
    training: Positive = 1.0
    """Factor of the training's duration."""


class Colocated(FileModel):
    """The job in a co-located placement: both phases in turn on its own training nodes."""

    nodes: NodeCount
    """Number of training nodes."""
    rollout_s: Positive
    """Longest duration of the rollout on them, seconds."""
    training_s: Positive
    """Longest duration of the training on them, seconds."""


def _ordered(drift: tuple[Drift, ...]) -> tuple[Drift, ...]:
    if any(a.iteration >= b.iteration for a, b in itertools.pairwise(drift)):
        raise ValueError("must be in order of iteration, each iteration once")
    return drift


class Job(ShapedJob, StaleJob):
    """An RL post-training job: a cycle of rollout, training and sync.

    Its attributes are the keys of a job in a scenario file (docs/reference/scenario.md), with `class_name` for `class`. The tuple
    `shapes` has other ways to run it, on other nodes. Shape 0 is the job as written, and shape k the k-th of `shapes`.
    """

    model_config = ConfigDict(serialize_by_alias=True)  # `class` is a word of Python, so the field has another name

    id: JobId
    """Name of the job, unique in the file; quote one that reads as a number."""
    arrival_s: NonNegative
    """Time of arrival, seconds from the start of the scenario."""
    iterations: Count | None = None
    """Number of iterations after which the job departs; one of this and `duration_s` is given."""
    duration_s: Positive | None = None
    """Time from admission to departure, seconds."""
    slo: AtLeastOne
    """Longest acceptable iteration time, multiple of the solo time."""
    rollout: Phase
    """Phase that generates the responses."""
    training: Training
    """Phase that updates the weights."""
    sync_s: NonNegative = 0.0
    """Time to transfer new weights, seconds; it occupies no node."""
    sync_gb: Unwritten[Positive | None] = None
    """Size of a sync over `cluster.network`, GB; null: it fills the link for `sync_s`."""
    staleness: Unwritten[Staleness] = 0
    """Largest age of a trained sample's weights, versions; 0 is on-policy, more is asynchronous."""
    drift: Annotated[tuple[Drift, ...], Field(strict=False), AfterValidator(_ordered)] = ()
    """Changes of the durations in event replays, in order of iteration."""
    # The default is not written, so that files without this key keep their hash.
    movable: Annotated[bool, Field(exclude_if=lambda movable: movable)] = True
    """Whether the job may move to another placement while it runs."""
    priority: Unwritten[Priority] = 0
    """Priority in the queue, higher first; equal ones in order of arrival."""
    user: Unwritten[UserName] = ""
    """Name of the job's user, for quotas and accounts."""
    budget: Unwritten[Budget | None] = None
    """Limit of cost and time, at which the job departs; null is no limit."""
    weight: Annotated[Positive, Field(exclude_if=lambda weight: weight == 1)] = 1.0
    """Relative value of an hour of the job's waiting or running."""
    class_name: Annotated[Unwritten[UserName], Field(alias="class")] = ""
    """Label of jobs of similar length."""
    estimate: Unwritten[Estimate | None] = None
    """Length that the owner states, for a job with iterations; null: policies know `iterations`."""
    parkable: Annotated[bool | None, Field(exclude_if=lambda parkable: parkable is None)] = None
    """Whether a policy may park the job; null is as `movable`. Never with duration_s."""
    shapes: Unwritten[Annotated[tuple[Shape, ...], Field(strict=False, json_schema_extra={"maxItems": MAX_SHAPES})]] = ()
    """Other ways to run the job, numbered from 1."""
    colocated: Colocated | None = None
    """The job on co-located nodes, for `colocated`; null uses training.nodes and the worst cases."""
    model: Annotated[Model | None, BeforeValidator(by_name)] = None
    """Language model from which missing seconds and memory are predicted; goes with lengths."""
    lengths: Lengths | None = None
    """Size and response lengths of a rollout, for a job with a model."""
    timing: Timing | None = None
    """Predicted parts of the phases, for replays that simulate rollouts; filled in for a job with a model."""

    @model_validator(mode="after")
    def _with_lengths(self) -> Job:
        if (self.lengths is None) != (self.model is None and self.timing is None):
            problem = "needs a model, from which phases are predicted" if self.lengths else "is missing; a model needs it"
            raise field_error(problem, "lengths")
        return self

    @model_validator(mode="after")
    def _one_stay(self) -> Job:
        stays = [name for name in STAYS if name in self.model_fields_set]
        if len(stays) != 1:
            raise field_error(f"needs exactly one of iterations and duration_s; {'both are' if stays else 'neither is'} given")
        if getattr(self, stays[0]) is None:
            raise field_error("must be a number, not null", stays[0])
        if self.estimate is not None and self.iterations is None:
            raise field_error("goes with iterations, not with duration_s", "estimate")
        return self

    @property
    def may_be_parked(self) -> bool:
        """Whether a plan may park the job."""
        return self.iterations is not None and (self.movable if self.parkable is None else self.parkable)

    @property
    def may_leave(self) -> bool:
        """Whether the job can leave its nodes before its end: for other ones, or for the queue."""
        return self.movable or self.may_be_parked

    def own_phases(self) -> Phases:
        """Return both phases of the job as written, in shape 0. `phases(shape)` returns those of another shape."""
        return Phases(self.rollout, self.training)

    def shape_clashes(self, shape: int) -> Iterator[Clash]:
        """Yield the problems of one of `shapes`: each a text, and the path of its key below the shape.

        Args:
            shape: Number of the shape, from 1.
        """
        named = {side: named_keys(getattr(self.shapes[shape - 1], side)) for side in SIDES}
        if not any(named.values()):
            yield ("is empty: it names no key of rollout or training",)
        for side in SIDES:
            if self.timing is not None and "actual" in named[side]:
                yield "does not go with a model, whose durations are drawn from its lengths", side, "actual"

    @property
    def solo_s(self) -> float:
        """T_solo: worst-case seconds of an iteration of the job alone on its own nodes, in shape 0."""
        return self.iteration_s(self.rollout.worst_case_s, self.training.worst_case_s, self.sync_s)

    def iteration_s(self, rollout_s: float, training_s: float, sync_s: float) -> float:
        """Return the seconds of an iteration of the job alone if its phases take the given times.

        Args:
            rollout_s: Duration of a rollout, seconds.
            training_s: Duration of a training, seconds.
            sync_s: Duration of a sync, seconds.
        """
        return alone_s(rollout_s, training_s, sync_s, self.staleness)

    def clash(self, cluster: Cluster) -> Clash | None:
        """Return the first reason for which the job does not fit a cluster's keys, or None.

        Args:
            cluster: The cluster.

        Returns:
            A text, followed by the path of the key that has the problem, below the job.
        """
        if clash := super().clash(cluster):
            return clash
        if cluster.network is None:
            return None if self.sync_gb is None else ("goes with cluster.network, which is missing", "sync_gb")
        return cluster.network.sync_problem(self.sync_s, self.sync_gb, self.solo_s)

    def training_s(self, nodes: int) -> float:
        """Return the worst-case seconds of the training in shape 0 on `nodes` training nodes."""
        return self.training.seconds_on(nodes)

    def known_anew(self, shape: int, phase: Side, **known: float) -> Job:
        """Return a copy of the job in which one phase has other values in a shape, such as a longer `worst_case_s`.

        Values of shape 0 also hold in the other shapes, except for those that a shape names itself.

        Args:
            shape: Number of the shape, 0 for the job as written.
            phase: Name of the phase to change, `rollout` or `training`.
            known: New values by key of the phase, such as `worst_case_s=95.0`.
        """
        if not shape:
            return self.model_copy(update={phase: getattr(self, phase).model_copy(update=known)})
        one = self.shapes[shape - 1]
        part: PhaseShape | None = getattr(one, phase)
        if part is None:
            part = PhaseShape() if phase == "rollout" else TrainingShape(by_nodes=self.training.by_nodes)
        other = one.model_copy(update={phase: part.model_copy(update=known)})
        return self.model_copy(update={"shapes": (*self.shapes[: shape - 1], other, *self.shapes[shape:])})
