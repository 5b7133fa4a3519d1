"""Where the jobs of a run were, one place after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Moved, Placement, Resumed
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from runtime.journal.record import RunRecord


class Stay(NamedTuple):
    """A job in one place.

    Attributes:
        from_s: since when; of a place that it was moved to, the end of the pause. What ends by then was done in the place before.
        group: its id. pins: numbers of the job's rollout nodes there. training_nodes: of the group.
        colocated: as of `rollmux_env.cluster.events.Placement`. shape: number of the job's shape there.
    """

    from_s: float
    group: int
    pins: tuple[int, ...]
    training_nodes: int
    colocated: bool
    shape: int


def stays_of(record: RunRecord) -> dict[str, list[Stay]]:
    """Where each job was, in order of time; of each, one at least.

    Raises:
        InputError: an event cannot have happened after those before it; one line.
    """
    state = State(record.started.cluster, observed=True)
    stays: dict[str, list[Stay]] = {}
    placements: dict[str, Placement] = {}
    for event in record.log:
        apply_recorded(state, event)
        if isinstance(event, Admitted | Moved):
            placements[event.job_id] = event.placement
        if isinstance(event, Admitted | Resumed):
            job_id = event.job_id
            group, placement = state.group_of(job_id), placements[job_id]
            place = group.id, state.pins(job_id), group.training_nodes, placement.colocated, placement.shape
            stays.setdefault(job_id, []).append(Stay(event.at_s, *place))
    return stays


def stay_at(stays: Sequence[Stay], end_s: float) -> Stay:
    """The stay in which something ended."""
    return next((stay for stay in reversed(stays) if stay.from_s < end_s), stays[0])
