"""Actions of a job between two iterations, the same for every kind of owner.

A transport first prepares its owner: it has the job's processes write a checkpoint, or ends a lease.
"""

from __future__ import annotations

from runtime.coordinator.ends import left, make_room, park
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import Consequences, RunState
from runtime.owners.protocol import NextStep, moved


def carry_out(run: RunState, handle: JobHandle, what: NextStep, said: Consequences) -> None:
    """Let a job that is between two iterations end, move, be parked, vacate its nodes or continue.

    Args:
        run: State of the run.
        handle: The job.
        what: Action to take, as returned by `next_step_of`.
        said: Consequences of the owner's last report. They are applied first, or together with those of the action.
    """
    match what:
        case NextStep.DONE | NextStep.OVER_BUDGET:
            run.apply(said.then(left(handle, what is NextStep.OVER_BUDGET)))
        case NextStep.MOVE:
            run.apply(said.then(moved(handle)))
        case NextStep.PARK:
            run.apply(said)
            park(run, handle)
        case NextStep.MAKE_ROOM:
            run.apply(said)
            make_room(run, handle)
        case NextStep.GO_ON:
            run.apply(said)
            run.decisions.order(handle)
