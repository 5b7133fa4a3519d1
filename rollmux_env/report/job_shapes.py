"""The shapes that jobs are placed in: on how many nodes, and how long their phases may take there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.replay.admission import Decision
from rollmux_env.report.tables import heading, make_table


class ShapeInUse(NamedTuple):
    """A job in one of its shapes.

    Attributes:
        shape: its number; 0 is the job as it is written. rollout, training: the phases.
        training_nodes: of the group, on all of which it trains. training_s: worst case of a training there, seconds.
        alone_s: seconds of an iteration there, if nobody shared the nodes.
    """

    shape: int
    rollout: Phase
    training: Training
    training_nodes: int
    training_s: float
    alone_s: float

    @property
    def nodes(self) -> dict[str, int]:
        """Numbers of nodes, by phase."""
        return {"rollout": self.rollout.nodes, "training": self.training_nodes}

    @property
    def worst_case_s(self) -> dict[str, float]:
        """Worst cases of the phases, seconds."""
        return {"rollout": self.rollout.worst_case_s, "training": self.training_s}


def shape_in_use(job: Job, shape: int, training_nodes: int | None = None) -> ShapeInUse:
    """A job in a shape, in a group with so many training nodes; by default with those that it asks for."""
    rollout, training = job.phases(shape)
    nodes = training.nodes if training_nodes is None else training_nodes
    training_s = training.seconds_on(nodes)
    own_s = alone_s(rollout.worst_case_s, training_s, job.sync_s, job.staleness)
    return ShapeInUse(shape, rollout, training, nodes, training_s, own_s)


def job_shapes_table(rows: Iterable[tuple[str, ShapeInUse]]) -> Table:
    """A line for each (id, job in a shape)."""
    table = make_table("job", "shape", "rollout", "training", "rollout s", "training s", "alone s")
    for job_id, used in rows:
        nodes = f"{used.rollout.nodes} x {used.rollout.pool}", f"{used.training_nodes} x {used.training.pool}"
        seconds = used.rollout.worst_case_s, used.training_s, used.alone_s
        table.add_row(job_id, str(used.shape), *nodes, *(f"{value:.1f}" for value in seconds))
    return table


def placed_shapes(decisions: Iterable[Decision], jobs: Sequence[Job]) -> list[RenderableType]:
    """Below `plan`: the shapes that were chosen; nothing where no placed job has any."""
    by_id = {job.id: job for job in jobs}
    rows = [
        (decision.job, shape_in_use(by_id[decision.job], decision.shape, len(decision.training_nodes)))
        for decision in decisions
        if decision.shape is not None
    ]
    return [Text(), heading("Chosen shapes"), job_shapes_table(rows)] if rows else []


def shapes_of_job(job: Job) -> list[RenderableType]:
    """Below `explain`: all shapes of the job, on the nodes that they ask for; nothing where it has none."""
    rows = [(job.id, shape_in_use(job, shape)) for shape in range(1 + len(job.shapes))]
    return [heading("Shapes"), job_shapes_table(rows)] if job.shapes else []
