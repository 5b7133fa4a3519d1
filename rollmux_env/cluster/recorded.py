"""Applying events that a file says have happened.

`apply` believes what it is given: an event that cannot have happened would let compiled code write beside its tables.
"""

from __future__ import annotations

from math import isfinite

from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    Event,
    Moved,
    Progressed,
    Reprofiled,
    Resized,
    Resumed,
    Warm,
    Withdrawn,
)
from rollmux_env.cluster.plan import check_nodes
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InputError, PlanError
from rollmux_env.keys.shapes import Phases


def apply_recorded(state: State, event: Event) -> None:
    """Apply an event to a state, if it can have happened there.

    Raises:
        InputError: it cannot; one line. The state is as it was.
    """
    try:
        problem = None if isfinite(event.at_s) else "its time is no time"
        problem = problem or _problem(state, event)
    except PlanError as error:
        problem = str(error)
    if problem is not None:
        raise InputError(problem)
    apply(state, event)


def _nodes(phases: Phases) -> tuple[int, int]:
    return phases.rollout.nodes, phases.training.nodes


def _problem(state: State, event: Event) -> str | None:
    """Why an event cannot have happened; None where it can."""
    match event:
        case Arrived(job=job):
            there = job.id in state.waiting or state.is_running(job.id)
            return f"job {job.id} is there already" if there else None
        case Admitted(job_id=job_id, placement=placement):
            if job_id not in state.waiting:
                return f"job {job_id} is not waiting"
            check_nodes(state, job_id, placement)
        case Moved(job_id=job_id, placement=placement):
            if not state.is_running(job_id) or state.is_paused(job_id):
                return f"job {job_id} is not running, or in the pause of a move"
            check_nodes(state, job_id, placement)
        case Resumed(job_id=job_id):
            return None if state.is_paused(job_id) else f"job {job_id} is not in the pause of a move"
        case Departed(job_id=job_id):
            return None if state.is_running(job_id) else f"job {job_id} is not running"
        case Withdrawn(job_id=job_id) | Warm(job_id=job_id):
            return None if job_id in state.waiting else f"job {job_id} is not waiting"
        case Reprofiled(job=job):
            if not state.knows(job.id):
                return f"job {job.id} has not arrived"
            known = state.job(job.id)
            if len(job.shapes) != len(known.shapes):
                return f"job {job.id} has other shapes than before"
            shapes = range(1 + len(job.shapes))
            same = all(_nodes(job.phases(k)) == _nodes(known.phases(k)) for k in shapes)
            steps = all(len(job.phases(k).training.by_nodes) <= len(known.phases(k).training.by_nodes) for k in shapes)
            return None if same and steps else f"job {job.id} has other nodes than before"
        case Progressed(jobs=jobs):
            unknown = next((done.job_id for done in jobs if not state.knows(done.job_id)), None)
            return None if unknown is None else f"job {unknown} has not arrived"
        case Resized(rollout_nodes=rollout_nodes, training_nodes=training_nodes):
            return None if min(rollout_nodes, training_nodes) >= 0 else "a pool has fewer than no nodes"
    return None
