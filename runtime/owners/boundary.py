"""What a job does between two iterations is carried out here, whoever its owner is.

A transport says first what its owner is to hear: that the job's processes are to write a checkpoint, that a lease is over.
"""

from __future__ import annotations

from runtime.coordinator.ends import left, make_room
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import Follows, RunState
from runtime.owners.protocol import Next, moved


def carry_out(run: RunState, handle: JobHandle, what: Next, said: Follows) -> None:
    """A job is between two iterations, and does this.

    Args:
        said: what follows from that which its owner has said just now.
    """
    match what:
        case Next.DONE | Next.OVER_BUDGET:
            run.follow(said.then(left(handle, what is Next.OVER_BUDGET)))
        case Next.MOVE:
            run.follow(said.then(moved(handle)))
        case Next.MAKE_ROOM:
            run.follow(said)
            make_room(run, handle)
        case Next.GO_ON:
            run.follow(said)
            run.decisions.order(handle)
