"""Actions of a job between two iterations, the same for every kind of owner.

A transport first prepares its owner: it has the job's processes write a checkpoint, or ends a lease.
"""

from __future__ import annotations

from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import left, make_room, park
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import RunState
from runtime.owners.protocol import NextStep, moved, next_step_of


def carried_out(run: RunState, handle: JobHandle, what: NextStep, now_s: float) -> Consequences:
    """Let a job that is between two iterations end, move, be parked, vacate its nodes or continue.

    Args:
        run: State of the run.
        handle: The job.
        what: Action to take, as returned by `next_step_of`.
        now_s: Present time, in seconds of the run.
    """
    match what:
        case NextStep.DONE | NextStep.OVER_BUDGET:
            return left(handle, what is NextStep.OVER_BUDGET)
        case NextStep.MOVE:
            return moved(handle)
        case NextStep.PARK:
            return park(run, handle)
        case NextStep.MAKE_ROOM:
            return make_room(handle)
        case NextStep.GO_ON:
            return run.order(handle, now_s)


def left_before_start(run: RunState, handle: JobHandle, now_s: float) -> Consequences:
    """Let a job leave a drained node before its processes are started there. The owner of an attached job is told when it asks.

    Args:
        run: State of the run.
        handle: The job.
        now_s: Present time, in seconds of the run.
    """
    if handle.spec.is_attached or not (handle.is_at_rest and run.has_seat(handle)):
        return Consequences()
    what = next_step_of(handle, False, run.scheduler.must_vacate(handle.id))
    return carried_out(run, handle, what, now_s) if what in (NextStep.MOVE, NextStep.MAKE_ROOM) else Consequences()
