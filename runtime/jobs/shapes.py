"""Shapes in job files, numbers of nodes on which a job may run: those of scenario files, but for what runs measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rollmux_env.keys.cluster import SIDES, Side
from rollmux_env.keys.shapes import MOST_SHAPES, PhaseShape, Shape
from rollmux_env.scheduler.facts import PhaseOfShape
from rollmux_env.validation_errors import field_error

if TYPE_CHECKING:
    from runtime.jobs.spec import JobSpec

_OF_NO_USE = {
    "pool": "is of no use to a real run, which has the pools rollout and training",
    "actual": "is of no use to a real run; it is for event replays",
    "switch": "is of no use to a real run, which takes those of the profile",
}


def named(shape: Shape, side: Side) -> dict[str, Any]:
    """The keys that a shape names of a phase, with their values."""
    phase: PhaseShape | None = getattr(shape, side)
    return {} if phase is None else {name: getattr(phase, name) for name in phase.model_fields_set}


def nodes_in(job: JobSpec, shape: int) -> dict[Side, int]:
    """Nodes of each side that a job asks for in a shape; 0 is the job as it is written."""
    own = {side: getattr(job, side).nodes for side in SIDES}
    if not shape:
        return own
    return {side: named(job.shapes[shape - 1], side).get("nodes", own[side]) for side in SIDES}


def nodes_of_shapes(job: JobSpec) -> Iterator[tuple[str, Side, int]]:
    """(where it is said, side, nodes) of a job as it is written, and in each of its shapes."""
    for number in range(1 + len(job.shapes)):
        where = f"shapes[{number - 1}]." if number else ""
        for side, nodes in nodes_in(job, number).items():
            yield f"{where}{side}.nodes", side, nodes


def estimated_phases(job: JobSpec) -> frozenset[PhaseOfShape]:
    """Phases whose worst case in a shape nobody states."""
    return frozenset(
        (number, side)
        for number, shape in enumerate(job.shapes, 1)
        for side in SIDES
        if nodes_in(job, number)[side] != nodes_in(job, 0)[side] and "worst_case_s" not in named(shape, side)
    )


def check_shapes(job: JobSpec) -> None:
    """Refuse shapes that a run can do nothing with.

    Raises:
        PydanticCustomError: of `field_error`, with a path below the job's.
    """
    if len(job.shapes) > MOST_SHAPES:
        raise field_error(f"are {len(job.shapes)}; a job has at most {MOST_SHAPES}", "shapes")
    known: list[Mapping[Side, int]] = [nodes_in(job, 0)]
    for k, shape in enumerate(job.shapes):
        nodes = nodes_in(job, k + 1)
        for side in SIDES:
            values = named(shape, side)
            for key in [key for key in _OF_NO_USE if key in values]:
                raise field_error(_OF_NO_USE[key], "shapes", k, side, key)
            for key in values.get("by_nodes", ()):
                if key <= nodes[side]:
                    raise field_error(f"must be above training.nodes, which is {nodes[side]}", "shapes", k, side, "by_nodes", key)
        if nodes in known:
            same = known.index(nodes)
            problem = f"has the nodes of shapes[{same - 1}]" if same else "has the nodes of the job as it is written"
            raise field_error(problem, "shapes", k)
        known.append(nodes)
    for number, side in sorted(estimated_phases(job)) if job.job_class is not None else ():
        problem = "is missing; on other nodes than its own only a job with a task can be predicted"
        raise field_error(problem, "shapes", number - 1, side, "worst_case_s")
