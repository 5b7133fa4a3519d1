"""Keys of a job in scenario files: its stay, its phases, and its place in the queue."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

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
from rollmux_env.keys.cluster import ONE_DEVICE, Cluster
from rollmux_env.keys.model import Lengths, Model, Timing
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.keys.queue import Budget
from rollmux_env.keys.shapes import MOST_SHAPES, Phases, PhaseShape, Shape, TrainingShape, named_keys, reshaped
from rollmux_env.validation_errors import field_error

STAYS = ("iterations", "duration_s")


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
    sync_gb: Unwritten[Positive | None] = None
    """What a sync takes over the link of `cluster.network`, GB; null: it fills the link for `sync_s`."""
    staleness: Unwritten[Staleness] = 0
    """Most versions that the weights may be old which sampled what is trained; 0 is on-policy, more is asynchronous."""
    drift: Annotated[tuple[Drift, ...], Field(strict=False), AfterValidator(_ordered)] = ()
    """How the durations change over time, for event replays; in order of iteration."""
    # The default is not written, so that what has no such key keeps its hash.
    movable: Annotated[bool, Field(exclude_if=lambda movable: movable)] = True
    """Whether it may be given another place while it runs."""
    priority: Unwritten[Priority] = 0
    """Its place in the queue: jobs of a higher one come first, of the same one in order of arrival."""
    user: Unwritten[UserName] = ""
    """Whose job it is, for quotas and accounts."""
    budget: Unwritten[Budget | None] = None
    """What it may cost and how long it may stay; it leaves when either is spent. null is no limit."""
    shapes: Unwritten[Annotated[tuple[Shape, ...], Field(strict=False, json_schema_extra={"maxItems": MOST_SHAPES})]] = ()
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
        if len(self.shapes) > MOST_SHAPES:
            raise field_error(f"are {len(self.shapes)}; a job has at most {MOST_SHAPES}", "shapes")
        known: list[Phases] = [self.phases()]
        for k, shape in enumerate(self.shapes):
            if not named_keys(shape.rollout) and not named_keys(shape.training):
                raise field_error("is empty: it names no key of rollout or training", "shapes", k)
            for name in ("rollout", "training"):
                if self.timing is not None and "actual" in named_keys(getattr(shape, name)):
                    problem = "does not go with a model, whose durations are drawn from its lengths"
                    raise field_error(problem, "shapes", k, name, "actual")
            phases = self.phases(k + 1)
            for key in phases.training.by_nodes:
                if key <= phases.training.nodes:
                    problem = f"must be above training.nodes, which is {phases.training.nodes}"
                    raise field_error(problem, "shapes", k, "training", "by_nodes", key)
            if phases in known:
                same = known.index(phases)
                whose = f"is the same as shapes[{same - 1}]" if same else "changes nothing: it is the job as it is written"
                raise field_error(whose, "shapes", k)
            known.append(phases)
        return self

    @property
    def solo_s(self) -> float:
        """T_solo: seconds of an iteration of the job alone on its own nodes."""
        return self.iteration_s(self.rollout.worst_case_s, self.training.worst_case_s, self.sync_s)

    def iteration_s(self, rollout_s: float, training_s: float, sync_s: float) -> float:
        """Seconds of an iteration of the job alone, were these its phases."""
        return alone_s(rollout_s, training_s, sync_s, self.staleness)

    def clash(self, cluster: Cluster) -> tuple[str, str] | None:
        """What of the job does not go with a cluster: the key, and the problem; None: nothing."""
        if self.staleness and cluster.one_device:
            return "staleness", f"does not go with cluster.one_device: {ONE_DEVICE}"
        if cluster.network is None:
            return None if self.sync_gb is None else ("sync_gb", "goes with cluster.network, which is missing")
        return cluster.network.sync_problem(self.sync_s, self.sync_gb, self.solo_s)

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
