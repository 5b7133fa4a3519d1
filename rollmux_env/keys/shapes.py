"""Keys of `shapes` of a job in scenario files: other ways to run the job, on other nodes."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, Overriding, PoolName, Positive, counted_keys
from rollmux_env.keys.phases import Actual, Phase, Switch, Training

MAX_SHAPES = 16  # largest number of shapes of a job, besides the job as written


class PhaseShape(FileModel):
    """The rollout in a shape. Given keys override those of the job."""

    pool: Overriding[PoolName] = None
    """Name of the pool whose nodes run the phase."""
    nodes: Overriding[NodeCount] = None
    """Number of nodes that the phase asks for."""
    worst_case_s: Overriding[Positive] = None
    """Longest duration on that many nodes, seconds."""
    host_memory_gb: Overriding[NonNegative] = None
    """Host memory that keeps the job resident, GB per node."""
    device_gb: Overriding[NonNegative] = None
    """Memory that the job keeps on each GPU between its phases, GB."""
    actual: Overriding[Actual] = None
    """Actual durations, for event replays."""
    switch: Overriding[Switch] = None
    """Times of warm and cold starts, for event replays."""


class TrainingShape(PhaseShape):
    """The training in a shape. Given keys override those of the job, and `by_nodes` is always overridden."""

    by_nodes: Annotated[Overriding[dict[Count, Positive]], BeforeValidator(counted_keys("nodes"))] = None
    """Longest duration, seconds, on more nodes than `nodes`: {number of nodes: seconds}; none if it is not given."""


class Shape(FileModel):
    """Another way to run a job, on other nodes."""

    rollout: Overriding[PhaseShape] = None
    """Differences of the rollout."""
    training: Overriding[TrainingShape] = None
    """Differences of the training."""


class Phases(NamedTuple):
    """Both phases of a job in one of its shapes.

    Attributes:
        rollout: The rollout.
        training: The training.
    """

    rollout: Phase
    training: Training


def reshape_phases(rollout: Phase, training: Training, shape: Shape) -> Phases:
    """Return the phases of a job in another shape. If it names any key of the training, the job's `by_nodes` is dropped."""
    more_rollout, more_training = named_keys(shape.rollout), named_keys(shape.training)
    if more_training:
        more_training = {"by_nodes": {}, **more_training}
    return Phases(rollout.model_copy(update=more_rollout), training.model_copy(update=more_training))


def named_keys(phase: PhaseShape | None) -> dict[str, Any]:
    """Return the keys of a phase that a shape gives, with their values."""
    return {} if phase is None else {name: getattr(phase, name) for name in phase.model_fields_set}
