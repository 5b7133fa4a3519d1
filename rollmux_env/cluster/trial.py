"""A look at a state in which a job is parked, for decisions that try one job after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import fits
from rollmux_env.cluster.events import Parked
from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import remove_member
from rollmux_env.kernel.tables import ROLLOUT


@contextmanager
def without_job(state: State, job_id: str) -> Iterator[State]:
    """Let a block see the state in which a running job is parked, for reading only.

    A copy of all records would take several times as long as the trial itself. So the state that the block sees shares them, and
    those that the park changes are restored afterwards.

    Args:
        state: State of the cluster. The block must not use it.
        job_id: Identifier of the running job.

    Yields:
        The state with the job parked, valid in the block only.
    """
    if _reaches_other_groups(state):
        twin = state.copy()
        apply(twin, Parked(state.now_s, job_id))
        yield twin
        return
    group = int(state.tables.job_records["group"][state.row(job_id)])
    restore = state.tables.save(state.tables.members(group), group)
    try:
        twin = state.sharing()
        apply(twin, Parked(state.now_s, job_id))
        yield twin
    finally:
        restore()


def may_fit_without(state: State, job_id: str, other: str) -> bool:
    """Test quickly whether a waiting job may have a place that keeps every rule if a running job is parked.

    It takes a third of the time of a trial, because it changes nothing but the record of a group.

    Args:
        state: State of the cluster, in which the waiting job has no place.
        job_id: Identifier of the waiting job.
        other: Identifier of the running job.

    Returns:
        False if the job has no such place. True if it may have one, which only a trial decides.
    """
    tables, view, row = state.tables, state.view, state.row(other)
    group = int(tables.job_records["group"][row])
    if _reaches_other_groups(state) or tables.group_records["n_members"][group] == 1:  # the latter closes its group
        return True
    restore = tables.save([], group)
    try:
        if dropped := remove_member(view.jobs, view.groups, group, row, 0):
            nodes = state.nodes.copy()
            nodes[view.groups["rollout_pool"][group], ROLLOUT] -= dropped
            view = view._replace(clock=view.clock._replace(nodes=nodes))
        return fits(view, state.row(job_id))
    finally:
        restore()


def _reaches_other_groups(state: State) -> bool:
    """Return whether a park changes the records of jobs in other groups."""
    return state.switches or state.cluster.network is not None
