"""Keys of `shapes` of a job in scenario files: other ways to run it, on other nodes."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, Overriding, PoolName, Positive
from rollmux_env.keys.phases import Actual, Phase, Switch, Training, node_keys

MOST_SHAPES = 16


class PhaseShape(FileModel):
    """What a shape says of a rollout: the keys that it names take the place of the job's own."""

    pool: Overriding[PoolName] = None
    """Name of the pool whose nodes it runs on."""
    nodes: Overriding[NodeCount] = None
    """Nodes that the phase asks for."""
    worst_case_s: Overriding[Positive] = None
    """Its longest duration on that many nodes, seconds."""
    host_memory_gb: Overriding[NonNegative] = None
    """Host memory that keeps the job resident, GB per node."""
    device_gb: Overriding[NonNegative] = None
    """Memory that the job keeps on each GPU of a node between its phases, GB."""
    actual: Overriding[Actual] = None
    """What really happens, for event replays."""
    switch: Overriding[Switch] = None
    """Times of warm and cold starts, for event replays."""


class TrainingShape(PhaseShape):
    """What a shape says of a training: the keys that it names take the place of the job's own, and of `by_nodes` in any case."""

    by_nodes: Annotated[Overriding[dict[Count, Positive]], BeforeValidator(node_keys)] = None
    """Its longest duration, seconds, on more nodes than `nodes`: {number of nodes: seconds}; without it, none."""


class Shape(FileModel):
    """Another way to run a job, on other nodes."""

    rollout: Overriding[PhaseShape] = None
    """What is different about the rollout."""
    training: Overriding[TrainingShape] = None
    """What is different about the training."""


class Phases(NamedTuple):
    """Both phases of a job in one of its shapes."""

    rollout: Phase
    training: Training


def reshaped(rollout: Phase, training: Training, shape: Shape) -> Phases:
    """Return the phases of a job in another shape. One that names any key of the training drops the job's `by_nodes`."""
    more_rollout, more_training = named_keys(shape.rollout), named_keys(shape.training)
    if more_training:
        more_training = {"by_nodes": {}, **more_training}
    return Phases(rollout.model_copy(update=more_rollout), training.model_copy(update=more_training))


def named_keys(phase: PhaseShape | None) -> dict[str, Any]:
    """Return the keys that a shape names of a phase, with their values."""
    return {} if phase is None else {name: getattr(phase, name) for name in phase.model_fields_set}
