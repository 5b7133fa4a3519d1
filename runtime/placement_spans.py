"""Placement spans of the jobs of a run: consecutive placements, each from its beginning to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Moved, Parked, Placement, Resumed
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from runtime.journal.record import RunRecord


class PlacementSpan(NamedTuple):
    """A job in one placement.

    Attributes:
        from_s: Beginning, in seconds; after a move or a park, the end of the pause. An iteration that ends by then belongs to the
            span before.
        group: Id of the group.
        pins: Numbers of the job's rollout nodes in the group.
        training_nodes: Number of training nodes of the group.
        colocated: Whether both phases run on the training nodes, as in `rollmux_env.cluster.events.Placement`.
        shape: Number of the job's shape.
        parked: Whether the job had been parked and waited before.
    """

    from_s: float
    group: int
    pins: tuple[int, ...]
    training_nodes: int
    colocated: bool
    shape: int
    parked: bool = False


def spans_of(record: RunRecord) -> dict[str, list[PlacementSpan]]:
    """Return the placement spans of each job that was placed, in order.

    Raises:
        InputError: If an event is impossible after those before it; one line.
    """
    state = State(record.started.cluster, observed=True)
    spans: dict[str, list[PlacementSpan]] = {}
    placements: dict[str, Placement] = {}
    parked: set[str] = set()
    for event in record.log:
        apply_recorded(state, event)
        if isinstance(event, Parked):
            parked.add(event.job_id)
        if isinstance(event, Admitted | Moved):
            placements[event.job_id] = event.placement
        if isinstance(event, Admitted | Resumed) and not state.is_paused(event.job_id):
            job_id = event.job_id
            group, placement = state.group_of(job_id), placements[job_id]
            place = group.id, state.pins(job_id), group.training_nodes, placement.colocated, placement.shape
            spans.setdefault(job_id, []).append(PlacementSpan(event.at_s, *place, job_id in parked))
            parked.discard(job_id)
    return spans


def span_at(spans: Sequence[PlacementSpan], end_s: float) -> PlacementSpan:
    """Return the span in which something ended at `end_s`."""
    return next((span for span in reversed(spans) if span.from_s < end_s), spans[0])
