"""A look at a state in which a job is parked, for decisions that try one job after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Parked
from rollmux_env.cluster.state import State


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
    if state.switches or state.cluster.network is not None:  # a park changes the records of jobs in other groups
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
