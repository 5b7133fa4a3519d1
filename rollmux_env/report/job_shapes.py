"""The shapes of jobs as tables, as plain values, and as text of a scenario file.

They are the shapes that a job may have, and those in which jobs are placed: numbers of nodes and phase times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.files import yaml_text
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.replay.admission import Decision
from rollmux_env.report.tables import heading, table_of
from rollmux_env.timing.shapes import JobShape, PhaseTime, ShapesOf


class ShapeInUse(NamedTuple):
    """A job in one of its shapes.

    Attributes:
        shape: Number of the shape; 0 is the job as written.
        rollout: The rollout in this shape.
        training: The training in this shape.
        training_nodes: Number of training nodes of the group, on all of which the job trains.
        training_s: Worst case of a training on these nodes, in seconds.
        alone_s: Seconds of an iteration on these nodes without other jobs.
    """

    shape: int
    rollout: Phase
    training: Training
    training_nodes: int
    training_s: float
    alone_s: float

    @property
    def nodes(self) -> dict[str, int]:
        """Number of nodes by phase."""
        return {"rollout": self.rollout.nodes, "training": self.training_nodes}

    @property
    def worst_case_s(self) -> dict[str, float]:
        """Worst case of each phase, in seconds."""
        return {"rollout": self.rollout.worst_case_s, "training": self.training_s}


def shape_in_use(job: Job, shape: int, training_nodes: int | None = None) -> ShapeInUse:
    """Return a job in a shape.

    Args:
        job: Job.
        shape: Number of the shape.
        training_nodes: Number of training nodes of the group, or None for those that the shape asks for.
    """
    rollout, training = job.phases(shape)
    nodes = training.nodes if training_nodes is None else training_nodes
    training_s = training.seconds_on(nodes)
    own_s = job.iteration_s(rollout.worst_case_s, training_s, job.sync_s)
    return ShapeInUse(shape, rollout, training, nodes, training_s, own_s)


def _in_use_table(rows: Iterable[tuple[str, ShapeInUse]]) -> Table:
    """Return a table with a line for each pair of a job's id and the job in a shape."""
    return table_of(
        rows,
        {
            "job": lambda row: row[0],
            "shape": lambda row: str(row[1].shape),
            "rollout": lambda row: f"{row[1].rollout.nodes} x {row[1].rollout.pool}",
            "training": lambda row: f"{row[1].training_nodes} x {row[1].training.pool}",
            "rollout s": lambda row: f"{row[1].rollout.worst_case_s:.1f}",
            "training s": lambda row: f"{row[1].training_s:.1f}",
            "alone s": lambda row: f"{row[1].alone_s:.1f}",
        },
    )


def placed_shapes(decisions: Iterable[Decision], jobs: Sequence[Job]) -> list[RenderableType]:
    """Return the shapes chosen by `plan`, or nothing if no placed job has shapes."""
    by_id = {job.id: job for job in jobs}
    rows = [
        (decision.job, shape_in_use(by_id[decision.job], decision.shape, len(decision.training_nodes)))
        for decision in decisions
        if decision.shape is not None
    ]
    return [Text(), heading("Chosen shapes"), _in_use_table(rows)] if rows else []


def shapes_of_job(job: Job) -> list[RenderableType]:
    """Return all shapes of a job for `explain`, on the nodes that they ask for, or nothing if it has none."""
    rows = [(job.id, shape_in_use(job, shape)) for shape in range(1 + len(job.shapes))]
    return [heading("Shapes"), _in_use_table(rows)] if job.shapes else []


def shapes_tables(shapes: ShapesOf) -> RenderableType:
    """Return the tables of `rollmux shapes`: every parallelism that fits each phase, and the pairs of numbers of nodes."""
    job = shapes.job
    return Group(
        heading(f"{job.id}: rollout"),
        _phase_table(shapes.rollouts),
        heading(f"{job.id}: training"),
        _phase_table(shapes.trainings),
        heading(f"{job.id}: shapes, each phase at its fastest"),
        _pair_table(shapes.shapes),
    )


def _phase_table(times: Sequence[PhaseTime]) -> RenderableType:
    fastest = dict(reversed([(time.place, time) for time in times]))
    return table_of(
        times,
        {
            "pool": lambda time: time.pool,
            "nodes": lambda time: str(time.nodes),
            "tensor parallel": lambda time: str(time.tensor_parallel),
            "stages": lambda time: str(time.stages),
            "copies": lambda time: str(time.copies),
            "worst case s": lambda time: f"{time.worst_case_s:.1f}",
            "GB a GPU": lambda time: f"{time.device_gb:.1f}",
            "host GB a node": lambda time: f"{time.host_memory_gb:.0f}",
        },
        style=lambda time: "" if fastest[time.place] is time else "dim",
    )


def _pair_table(pairs: Sequence[JobShape]) -> RenderableType:
    return table_of(
        pairs,
        {
            "rollout": lambda pair: f"{pair.rollout.nodes} x {pair.rollout.pool}",
            "training": lambda pair: f"{pair.training.nodes} x {pair.training.pool}",
            "rollout s": lambda pair: f"{pair.rollout.worst_case_s:.1f}",
            "training s": lambda pair: f"{pair.training.worst_case_s:.1f}",
            "alone s": lambda pair: f"{pair.alone_s:.1f}",
            "$ alone": lambda pair: f"{pair.usd:.3f}",
            "$ busy": lambda pair: f"{pair.busy_usd:.3f}",
            "": lambda pair: ", ".join(["own"] * pair.own + ["Pareto"] * pair.pareto),
        },
        left=2,
        style=lambda pair: "" if pair.pareto or pair.own else "dim",
    )


def shapes_report(shapes: ShapesOf) -> dict[str, Any]:
    """Return the shapes of a job as plain values; the key `shapes` has the form of a scenario file."""
    return {
        "job": shapes.job.id,
        "rollout": [time._asdict() for time in shapes.rollouts],
        "training": [time._asdict() for time in shapes.trainings],
        "pairs": [
            shape._asdict() | {"rollout": shape.rollout._asdict(), "training": shape.training._asdict()} for shape in shapes.shapes
        ],
        "shapes": shapes.in_file(),
    }


def shapes_yaml(every: Sequence[ShapesOf]) -> str:
    """Return a list `shapes` for each job, to be pasted into the job in a scenario file."""
    return "".join(f"# {shapes.job.id}\n{yaml_text({'shapes': shapes.in_file()})}" for shapes in every)
