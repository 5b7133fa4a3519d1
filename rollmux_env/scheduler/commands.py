"""What the scheduler tells a driver, and which facts may answer it.

Commands are to be carried out when the journal entries of their step are durable, in their order.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.scheduler import facts
from rollmux_env.scheduler.nodes import PoolNode
from rollmux_env.scheduler.view import HoldName


class Seating(NamedTuple):
    """The nodes of a job in a group.

    Attributes:
        group: its id, or `LEASE`.
        rollout, training: numbers within the group of the nodes that a phase holds.
        rollout_nodes, training_nodes: these nodes, where the scheduler knows any by name.
        colocated: rollouts hold training nodes, of the job's own or with `one_device`.
    """

    group: int
    rollout: tuple[int, ...]
    training: tuple[int, ...]
    rollout_nodes: tuple[PoolNode, ...] = ()
    training_nodes: tuple[PoolNode, ...] = ()
    colocated: bool = False


class Lend(NamedTuple):
    """A job that nobody knows may do a worst-case pass here, as a guest."""

    job_id: str
    seating: Seating


class Place(NamedTuple):
    """A job has this place and begins there; or goes on there, where it was moved."""

    job_id: str
    seating: Seating


class Wait(NamedTuple):
    """There is no place for a job yet."""

    job_id: str


class Grant(NamedTuple):
    """A phase may run, now, on all its nodes; a sync on those of both phases.

    Attributes:
        parts: of a rollout that can do with a part of its nodes: numbers of those that it has now.
        switched: one of its nodes last ran another job. paired: another permit of its group was given at the same time.
    """

    job_id: str
    phase: HoldName
    parts: tuple[int, ...] = ()
    switched: bool = False
    paired: bool = False


class Shrink(NamedTuple):
    """A tail leaves its nodes but for a share: where the scheduler knows parts of nodes, but for these."""

    job_id: str
    parts: tuple[int, ...] = ()


class Grow(NamedTuple):
    """A rollout has these parts of its nodes from now on; they are more than before."""

    job_id: str
    parts: tuple[int, ...]


class Move(NamedTuple):
    """A job goes to another place: a replay drops the iteration in hand, a run ends it first."""

    job_id: str


class AtRisk(NamedTuple):
    """A job breaks its SLO if it goes on as of late.

    Attributes:
        slowdown: of late, against its solo time. moved: a better place has been found.
    """

    job_id: str
    slowdown: float
    moved: bool


class Evict(NamedTuple):
    """A job's processes are to end. Until they have, nothing that it holds is given to others."""

    job_id: str


Command = Lend | Place | Wait | Grant | Shrink | Grow | Move | AtRisk | Evict

# By command, the facts that may answer it. Any job may fail at any time, and be halted once the run stops.
ANSWERS: dict[type[Command], tuple[type[facts.Fact], ...]] = {
    Lend: (facts.Ready, facts.Profiled, facts.Failed, facts.Halted),
    Place: (facts.Ready, facts.Continued, facts.Failed, facts.Halted),
    Wait: (facts.Failed,),
    Grant: (facts.Threshold, facts.Finished, facts.Vacated, facts.Failed, facts.Halted),
    Shrink: (facts.Shrunk, facts.Finished, facts.Vacated, facts.Failed, facts.Halted),
    Grow: (),
    Move: (facts.Vacated, facts.Left, facts.Failed, facts.Halted),
    AtRisk: (),
    Evict: (facts.Cleared,),
}
