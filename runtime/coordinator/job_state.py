"""The life of a job as the coordinator of a run knows it: eight states, and the table of what may happen in each."""

from __future__ import annotations

from enum import Enum
from typing import Literal, get_args

from rollmux_env.errors import InvariantError

JobEvent = Literal["lent", "arrived", "placed", "moves", "left", "rests", "rested", "ends", "gone"]
"""What happens to a job: it is lent nodes for its profile, arrives at the policy, gets a place, is to move, leaves its place; its
processes are to end until it has a place, and have ended; it is being ended, and is gone."""


class JobState(Enum):
    """A state of a job."""

    ARRIVING = "arriving"  # nobody has asked for nodes for it
    PROFILING = "profiling"  # it has lent nodes, and is measured there
    WAITING = "waiting"  # for a place, for those that it came with, or to be measured alone
    PLACED = "placed"
    MOVING = "moving"  # it is to leave its place for another one
    RESTING = "resting"  # its processes end, since it waits; what happens meanwhile counts when they have ended
    ENDING = "ending"  # its processes are ended; it is made anew, or comes to its end
    GONE = "gone"  # it has come to its end, or another handle stands for it


_Row = dict[str, JobState]
_ANY: tuple[str, ...] = get_args(JobEvent)
_END: _Row = {"ends": JobState.ENDING, "gone": JobState.GONE}

TRANSITIONS: dict[JobState, _Row] = {
    JobState.ARRIVING: {"lent": JobState.PROFILING, "arrived": JobState.WAITING} | _END,
    JobState.PROFILING: {"left": JobState.WAITING, "rests": JobState.RESTING} | _END,
    JobState.WAITING: {"arrived": JobState.WAITING, "lent": JobState.PROFILING, "placed": JobState.PLACED}
    | {"rests": JobState.RESTING, "left": JobState.WAITING}
    | _END,
    JobState.PLACED: {"placed": JobState.PLACED, "moves": JobState.MOVING, "left": JobState.WAITING} | _END,
    JobState.MOVING: {"placed": JobState.PLACED, "moves": JobState.MOVING, "left": JobState.WAITING} | _END,
    JobState.RESTING: {"rests": JobState.RESTING} | _END,
    JobState.ENDING: dict.fromkeys(_ANY, JobState.ENDING) | _END,
    JobState.GONE: dict.fromkeys(_ANY, JobState.GONE),
}
"""The state that follows, by what happens. A command that was decided before a job's end may be carried out behind it."""


class JobLife:
    """The life of a job, which follows the table.

    Attributes:
        state: The state of the job.
    """

    def __init__(self) -> None:
        self.state = JobState.ARRIVING
        self._awake = JobState.ARRIVING  # while it rests: the state that it has when its processes have ended

    def follow(self, event: JobEvent) -> None:
        """Change the state as the table has it.

        Args:
            event: Event in the life of the job.

        Raises:
            InvariantError: That cannot happen in its state.
        """
        if self.state is JobState.RESTING and event == "rested":
            self.state = self._awake
        elif self.state is JobState.RESTING and event not in TRANSITIONS[JobState.RESTING]:
            self._awake = _next(self._awake, event)
        else:
            former, self.state = self.state, _next(self.state, event)
            if self.state is JobState.RESTING is not former:
                self._awake = former


def _next(state: JobState, event: JobEvent) -> JobState:
    if event not in TRANSITIONS[state]:
        raise InvariantError(f"a job that is {state.value} cannot be {event!r}")
    return TRANSITIONS[state][event]
