"""Where the jobs of a run were, one place after the other: in which shape, and on how many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Resumed
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.report.job_shapes import ShapeInUse, shape_in_use
from runtime.journal.record import RunRecord


class Stay(NamedTuple):
    """A job in one place.

    Attributes:
        from_s: since when; of a place that it was moved to, the end of the pause. What ends by then was done in the place before.
        shape: number of its shape there. training_nodes: of its group.
    """

    from_s: float
    shape: int
    training_nodes: int

    def planned(self, job: Job) -> ShapeInUse:
        """By which figures a job is planned there."""
        return shape_in_use(job, self.shape, self.training_nodes)


def stays_of(record: RunRecord) -> dict[str, list[Stay]]:
    """Where each job was, in order of time; of each, one at least.

    Raises:
        InputError: an event cannot have happened after those before it; one line.
    """
    state = State(record.started.cluster, observed=True)
    stays: dict[str, list[Stay]] = {}
    for event in record.log:
        apply_recorded(state, event)
        if isinstance(event, Admitted | Resumed):
            job_id = event.job_id
            stays.setdefault(job_id, []).append(Stay(event.at_s, state.shape(job_id), state.group_of(job_id).training_nodes))
    return stays


def stay_at(stays: Sequence[Stay], end_s: float) -> int:
    """Number of the stay in which something ended."""
    return max((number for number, stay in enumerate(stays) if stay.from_s < end_s), default=0)
