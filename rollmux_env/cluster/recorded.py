"""Application of events that were read from a file.

`apply` trusts its input: an impossible event would let compiled code write outside its tables. These functions check it first.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from rollmux_env.cluster import events
from rollmux_env.cluster.apply import apply, change, keep_promises
from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import check_nodes
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.keys.job import Job
from rollmux_env.keys.shapes import Phases
from rollmux_env.validation_errors import one_line

IMPOSSIBLE = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that `apply` raises for an impossible event."""


def apply_recorded(state: State, event: Event) -> None:
    """Apply an event to a state if it is possible there.

    Raises:
        InputError: The event is impossible. The state is unchanged.
    """
    _check(state, event)
    apply(state, event)


def apply_all_recorded(state: State, recorded: Iterable[Event]) -> None:
    """Apply events one after the other, each if it is possible at that point.

    Raises:
        InputError: An event is impossible.
    """
    for event in recorded:
        try:
            _check(state, event)
            change(state, event)
        except IMPOSSIBLE as error:
            what = f"{type(event).__name__} at {event.at_s:.3f} s"
            raise InputError(f"{what} cannot have happened: {one_line(str(error))}") from None
    keep_promises(state)


def _check(state: State, event: Event) -> None:
    try:
        problem = None if isfinite(event.at_s) else "its time is not finite"
        problem = problem or _problem(state, event)
    except PlanError as error:
        problem = str(error)
    if problem is not None:
        raise InputError(problem)


JobEvent = (
    events.Admitted
    | events.Withdrawn
    | events.Warm
    | events.Begun
    | events.Moved
    | events.Resumed
    | events.Departed
    | events.OverBudget
    | events.Parked
)
_WAITS, _RUNS, _PAUSED = "is not waiting", "is not running", "is not in a pause"
_NEEDS: dict[type[Event], str] = {  # error for an event whose job is in another state than it needs
    events.Admitted: _WAITS,
    events.Withdrawn: _WAITS,
    events.Warm: _WAITS,
    events.Begun: _RUNS,
    events.Moved: f"{_RUNS}, or in a pause",
    events.Parked: f"{_RUNS}, or in a pause",
    events.Resumed: _PAUSED,
    events.Departed: _RUNS,
    events.OverBudget: _RUNS,
}


def _problem(state: State, event: Event) -> str | None:
    """Return the reason why an event is impossible, or None if it is possible."""
    match event:
        case events.Arrived(job=job):
            is_present = job.id in state.waiting or state.is_running(job.id)
            return f"job {job.id} is there already" if is_present else None
        case events.Reprofiled(job=job):
            return _find_changed_property(state.job(job.id), job) if state.knows(job.id) else f"job {job.id} has not arrived"
        case events.Progressed(jobs=jobs):
            unknown = next((done.job_id for done in jobs if not state.knows(done.job_id)), None)
            return None if unknown is None else f"job {unknown} has not arrived"
        case events.Resized(rollout_nodes=rollout_nodes, training_nodes=training_nodes):
            return None if min(rollout_nodes, training_nodes) >= 0 else "a pool has a negative number of nodes"
        case events.Lent(users=users, rollout_nodes=rollout_nodes, training_nodes=training_nodes):
            return _problem_of_lent(bool(users), rollout_nodes, training_nodes)
        case events.Carried():
            return "a job has arrived before it" if state.arrived else None
        case events.Ticked() | events.QuotaSet() | events.MonthBegun():
            return None
    return _problem_of_job(state, event)


def _problem_of_lent(is_lent: bool, rollout_nodes: int, training_nodes: int) -> str | None:
    if min(rollout_nodes, training_nodes) < 0:
        return "a pool lends a negative number of nodes"
    has_nodes = rollout_nodes + training_nodes > 0
    if has_nodes and not is_lent:
        return "nodes are lent to no job"
    return "a job is lent no nodes" if is_lent and not has_nodes else None


def _problem_of_job(state: State, event: JobEvent) -> str | None:
    """Return the reason why an event of a job is impossible, or None if it is possible."""
    job_id, needs = event.job_id, _NEEDS[type(event)]
    paused = state.is_paused(job_id)
    holds = job_id in state.waiting if needs == _WAITS else paused if needs == _PAUSED else state.is_running(job_id)
    if not holds or (isinstance(event, events.Moved | events.Parked) and paused):
        return f"job {job_id} {needs}"
    if isinstance(event, events.Admitted | events.Moved):
        check_nodes(state, job_id, event.placement)
    return None


def _find_changed_property(known: Job, job: Job) -> str | None:
    """Return which fixed property of a job differs in its new description, or None."""
    if len(job.shapes) != len(known.shapes):
        return f"job {job.id} has other shapes than before"
    for one, before in zip(_every_shape(job), _every_shape(known), strict=True):
        steps = len(one.training.by_nodes) <= len(before.training.by_nodes)
        if not steps or one.rollout.nodes != before.rollout.nodes or one.training.nodes != before.training.nodes:
            return f"job {job.id} has other nodes than before"
    return None


def _every_shape(job: Job) -> list[Phases]:
    return [job.phases(shape) for shape in range(1 + len(job.shapes))]
