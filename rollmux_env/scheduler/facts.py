"""What a driver tells the scheduler.

A new fact is a class here, in `Fact`, and a method that takes it, in `Scheduler.takes`; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rollmux_env.cluster.events import Progress
from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.nodes import PoolName, PoolNode
from rollmux_env.scheduler.view import DispatchPolicy, HoldName

PhaseOfShape = tuple[int, Side]
"""Number of a shape, and a phase in it."""


class _OfJob(NamedTuple):
    job_id: str


class _OfNodes(NamedTuple):
    names: frozenset[str]


class Arrived(NamedTuple):
    """A job wants a place, and is known by its worst case.

    Attributes:
        again: it had to give up its place, and waits before all others of its priority.
        alive: names of the nodes on which its processes have its state. Where it gets just these now, it begins without a cold
            start. A job that has to wait (`commands.Wait`) ends them.
    """

    job: Job
    again: bool = False
    alive: frozenset[str] = frozenset()


class Confined(NamedTuple):
    """A job that waits, or is about to arrive, may have these nodes alone; told before `Arrived`."""

    job_id: str
    names: frozenset[str]


class Alone(_OfJob):
    """A job keeps more of its nodes than it may: from now on nobody is to share a group with it."""


class Estimated(NamedTuple):
    """Worst cases of a job that is about to arrive are estimates, until its iterations have measured them.

    Attributes:
        phases: which, by number of the shape and name.
    """

    job_id: str
    phases: frozenset[PhaseOfShape]


class Unprofiled(NamedTuple):
    """Jobs have to be measured before they can arrive: they want nodes for a worst-case pass each.

    Attributes:
        needs: nodes that each job asks for, by id and pool.
        rule: a dispatch policy of their own, on lent nodes; told with the `Profiled` of the last guest, on those of its batch.
        names: of the nodes that they may have; none: any.
    """

    needs: Mapping[str, Mapping[PoolName, int]]
    rule: DispatchPolicy | None = None
    names: frozenset[str] = frozenset()


class Profiled(_OfJob):
    """A guest has done its pass, and is none any more."""


class Ready(NamedTuple):
    """A phase could run: the phase before it, and the sync before a rollout, are over; or what needs all the job's nodes, an init
    or a sync. A stale job's rollouts wait for the sync of 1 + staleness iterations before, and become ready while it trains.

    Attributes:
        parts: of a rollout that can do with a part of its nodes: what these are cut into.
    """

    job_id: str
    phase: HoldName
    parts: tuple[PoolNode, ...] = ()


class Threshold(_OfJob):
    """So many of the responses of a rollout are done that the rest may be migrated."""


class Shrunk(_OfJob):
    """A tail has left the parts of its nodes that it was to leave."""


class Finished(NamedTuple):
    """A phase has run, and its nodes are free.

    Attributes:
        seconds: how long it took. cold: it began with a cold start.
        counts: False of a rollout beside the job's iterations: that of the iteration is still to come.
        device_gb: memory that the job keeps on each GPU of a node until its next phase there, GB.
        cold_s: seconds of that cold start, where they are to replace those that are known; else None.
    """

    job_id: str
    phase: HoldName
    seconds: float
    cold: bool = False
    counts: bool = True
    device_gb: float = 0.0
    cold_s: float | None = None


class Continued(NamedTuple):
    """A job that had a place before the driver was there has an iteration in hand; told before it says anything else.

    Attributes:
        phase: the last one that it began. runs: it has its permit still; else it is a rollout that is over.
        sampled: rollouts that are over, and their trainings not; None: of a job on-policy, as `phase` and `runs` say. Of a stale
            job this is told of each phase that it has in hand, with 0 from the second time on.
    """

    job_id: str
    phase: HoldName
    runs: bool
    sampled: int | None = None


class Sampled(_OfJob):
    """A stale job has run its last rollout, and trains what is left."""


class Synced(NamedTuple):
    """A sync has taken so many seconds."""

    job_id: str
    seconds: float


class Iterated(NamedTuple):
    """An iteration is over, and what has to be kept of it is kept.

    Attributes:
        progress: of the job, in all. seconds: from the wish for its rollout to the end of its sync; None where nobody looks.
        movable: whether it can go on elsewhere, as it turns out.
    """

    progress: Progress
    seconds: float | None = None
    movable: bool = True


class Vacated(NamedTuple):
    """A job that is to move has left its old place.

    Attributes:
        progress: with what the move has cut short; None where that is nothing.
    """

    job_id: str
    progress: Progress | None = None


class Resumed(_OfJob):
    """The pause of a move is over."""


class Left(NamedTuple):
    """A job has done its stay; asked between two iterations. What a stale job runs then, or has not trained, is dropped.

    Attributes:
        over_budget: its budget is spent before.
    """

    job_id: str
    over_budget: bool = False


class Failed(_OfJob):
    """A job has failed, has lost a process, or is wanted no longer. Nothing is granted to it any more."""


class Cleared(NamedTuple):
    """All processes of a job that was evicted have ended.

    Attributes:
        progress: with what it has run and lost; None where that is what was said last.
    """

    job_id: str
    progress: Progress | None = None


class Halted(_OfJob):
    """A job's processes have ended because the run stops. It keeps its place for the day on which the run goes on."""


class Absent(_OfJob):
    """A job between two iterations does something first, for nobody knows how long: it is in nobody's way until it is ready."""


class Lost(_OfNodes):
    """Nodes are no longer there."""


class Drained(_OfNodes):
    """Nodes get no new jobs. Those on them are moved, as far as there is room and they can be."""


class Undrained(_OfNodes):
    """Nodes get jobs again."""


class Joined(NamedTuple):
    """More nodes are there."""

    nodes: tuple[PoolNode, ...]


class Stop(NamedTuple):
    """Nothing more is to begin."""


Fact = (
    Arrived
    | Confined
    | Alone
    | Estimated
    | Unprofiled
    | Profiled
    | Ready
    | Threshold
    | Shrunk
    | Finished
    | Continued
    | Sampled
    | Synced
    | Iterated
    | Vacated
    | Resumed
    | Left
    | Failed
    | Cleared
    | Halted
    | Absent
    | Lost
    | Drained
    | Undrained
    | Joined
    | Stop
)
