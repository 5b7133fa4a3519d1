"""Keys of `shapes` of a job in scenario files: other ways to run it, on other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from rollmux_env.fields import Count, FileModel, NodeCount, NonNegative, Overriding, PoolName, Positive
from rollmux_env.keys.phases import Actual, Phase, Switch, Training, node_keys
from rollmux_env.validation_errors import field_error

if TYPE_CHECKING:
    from rollmux_env.keys.job import Job

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
