"""The commands that the scheduler gives a driver, and the facts that may answer each.

A driver carries out the commands of a step in order, when the journal entries of the step are durable.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.scheduler import facts
from rollmux_env.scheduler.nodes import PoolNode
from rollmux_env.scheduler.view import HoldName


class Seating(NamedTuple):
    """The nodes of a job in a group.

    Attributes:
        group: Id of the group, or `PROFILING_GROUP`.
        rollout: Numbers within the group of the nodes that a rollout holds.
        training: Numbers within the group of the nodes that a training holds.
        rollout_nodes: Nodes that a rollout holds; empty if the scheduler knows no nodes by name.
        training_nodes: Nodes that a training holds; empty if the scheduler knows no nodes by name.
        colocated: Whether rollouts hold the training nodes, because the job is co-located or with `one_device`.
    """

    group: int
    rollout: tuple[int, ...]
    training: tuple[int, ...]
    rollout_nodes: tuple[PoolNode, ...] = ()
    training_nodes: tuple[PoolNode, ...] = ()
    colocated: bool = False


class Lend(NamedTuple):
    """Permission for an unprofiled job to run a worst-case pass on some nodes, as a guest.

    Attributes:
        job_id: Identifier of the job.
        seating: Nodes of the job.
    """

    job_id: str
    seating: Seating


class StartJob(NamedTuple):
    """The place in which a job starts, or continues if it was moved.

    Attributes:
        job_id: Identifier of the job.
        seating: Nodes of the job.
    """

    job_id: str
    seating: Seating


class KeepWaiting(NamedTuple):
    """The notice that there is no place for a job yet.

    Attributes:
        job_id: Identifier of the job.
    """

    job_id: str


class Grant(NamedTuple):
    """The permit of a phase to run now on all its nodes; a sync runs on those of both phases.

    Attributes:
        job_id: Identifier of the job.
        phase: Phase that may run.
        parts: Numbers of the parts that a rollout has now, if it can run on a part of its nodes.
        switched: Whether one of its nodes last ran another job.
        paired: Whether another permit of its group was given at the same time.
    """

    job_id: str
    phase: HoldName
    parts: tuple[int, ...] = ()
    switched: bool = False
    paired: bool = False


class Shrink(NamedTuple):
    """The order for a tail to leave its nodes except for a share.

    Attributes:
        job_id: Identifier of the job.
        parts: Numbers of the parts that the tail keeps, if the scheduler knows parts of nodes.
    """

    job_id: str
    parts: tuple[int, ...] = ()


class Grow(NamedTuple):
    """The grant of more parts of its nodes to a running rollout.

    Attributes:
        job_id: Identifier of the job.
        parts: Numbers of all parts that it has from now on.
    """

    job_id: str
    parts: tuple[int, ...]


class Vacate(NamedTuple):
    """The order to move a job to another place. A replay drops the unfinished iteration; a run finishes it first.

    Attributes:
        job_id: Identifier of the job.
    """

    job_id: str


class YieldPlace(NamedTuple):
    """The order to leave the job's place at the end of its iteration, and to wait for another one.

    Attributes:
        job_id: Identifier of the job.
    """

    job_id: str


class AtRisk(NamedTuple):
    """The warning that a job breaks its SLO if it continues at its recent speed.

    Attributes:
        job_id: Identifier of the job.
        slowdown: Recent slowdown, against the job's solo time.
        moved: Whether a better place was found.
    """

    job_id: str
    slowdown: float
    moved: bool


class Evict(NamedTuple):
    """The order to end a job's processes. Until they have ended, other jobs get nothing that the job holds.

    Attributes:
        job_id: Identifier of the job.
    """

    job_id: str


Command = Lend | StartJob | KeepWaiting | Grant | Shrink | Grow | Vacate | YieldPlace | AtRisk | Evict

# The facts that may answer each command. Any job may fail at any time, and be halted once the run stops.
ANSWERS: dict[type[Command], tuple[type[facts.Fact], ...]] = {
    Lend: (facts.Ready, facts.Profiled, facts.Failed, facts.Halted),
    StartJob: (facts.Ready, facts.Continued, facts.Failed, facts.Halted),
    KeepWaiting: (facts.Failed,),
    Grant: (facts.Threshold, facts.Finished, facts.Vacated, facts.Failed, facts.Halted),
    Shrink: (facts.Shrunk, facts.Finished, facts.Vacated, facts.Failed, facts.Halted),
    Grow: (),
    Vacate: (facts.Vacated, facts.Left, facts.Failed, facts.Halted),
    YieldPlace: (facts.YieldedPlace, facts.Left, facts.Failed, facts.Halted),
    AtRisk: (),
    Evict: (facts.Cleared,),
}
