"""The life of a job in the coordinator: ten states, and the table of events that are possible in each."""

from __future__ import annotations

from enum import Enum
from typing import Literal, get_args

from rollmux_env.errors import InvariantError

JobEvent = Literal["lent", "arrived", "placed", "moves", "yields", "parked", "left", "rests", "rested", "ends", "gone"]
"""An event of a job.

It is lent nodes for its profile, arrives at the policy, gets a place, must move, must give up its place, is parked, leaves its
place; its processes must end until it has a place, and have ended; it is being ended, and is gone.
"""


class JobState(Enum):
    """A state of a job."""

    ARRIVING = "arriving"  # no nodes have been requested for it
    PROFILING = "profiling"  # it is measured on lent nodes
    WAITING = "waiting"  # it waits for a place, for jobs that arrived with it, or to be measured alone
    PLACED = "placed"
    MOVING = "moving"  # it must leave its place for another one
    YIELDING = "yielding"  # it must leave its place at the end of its iteration, to be parked
    PARKED = "parked"  # it has left its place for another job, and continues from a checkpoint when it has one again
    RESTING = "resting"  # its processes end because it waits; events are applied when they have ended
    ENDING = "ending"  # its processes are being ended; then it is restarted, or ends
    GONE = "gone"  # it has ended, or another handle has replaced this one


_Row = dict[str, JobState]
_ANY: tuple[str, ...] = get_args(JobEvent)
_END: _Row = {"ends": JobState.ENDING, "gone": JobState.GONE}

TRANSITIONS: dict[JobState, _Row] = {
    JobState.ARRIVING: {"lent": JobState.PROFILING, "arrived": JobState.WAITING} | _END,
    JobState.PROFILING: {"left": JobState.WAITING, "rests": JobState.RESTING} | _END,
    JobState.WAITING: {"arrived": JobState.WAITING, "lent": JobState.PROFILING, "placed": JobState.PLACED}
    | {"parked": JobState.PARKED, "rests": JobState.RESTING, "left": JobState.WAITING}
    | _END,
    JobState.PLACED: {"placed": JobState.PLACED, "moves": JobState.MOVING, "yields": JobState.YIELDING, "left": JobState.WAITING}
    | _END,
    JobState.MOVING: {"placed": JobState.PLACED, "moves": JobState.MOVING, "left": JobState.WAITING} | _END,
    JobState.YIELDING: {"left": JobState.WAITING} | _END,
    JobState.PARKED: {"placed": JobState.PLACED} | _END,
    JobState.RESTING: {"rests": JobState.RESTING} | _END,
    JobState.ENDING: dict.fromkeys(_ANY, JobState.ENDING) | _END,
    JobState.GONE: dict.fromkeys(_ANY, JobState.GONE),
}
"""The next state, by state and event. A command that was decided before a job's end may be carried out after it."""


class JobLife:
    """The state of a job.

    Attributes:
        state: The state.
    """

    def __init__(self) -> None:
        self.state = JobState.ARRIVING
        self._awake = JobState.ARRIVING  # while the job rests: its state after its processes have ended

    @property
    def is_moving(self) -> bool:
        """Whether the job must leave its place for another one."""
        return self.state is JobState.MOVING

    @property
    def is_yielding(self) -> bool:
        """Whether the job must leave its place at the end of its iteration, to be parked."""
        return self.state is JobState.YIELDING

    @property
    def is_resting(self) -> bool:
        """Whether the job's processes are being ended until it has a place."""
        return self.state is JobState.RESTING

    @property
    def is_alive(self) -> bool:
        """Whether the job has not ended and is not being ended."""
        return self.state not in (JobState.ENDING, JobState.GONE)

    @property
    def is_gone(self) -> bool:
        """Whether the job has ended, or another handle has replaced this one."""
        return self.state is JobState.GONE

    def follow(self, event: JobEvent) -> None:
        """Change the state by the table.

        Args:
            event: Event of the job.

        Raises:
            InvariantError: If the event is impossible in its state.
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
