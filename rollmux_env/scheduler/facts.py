"""The facts that a driver reports to the scheduler.

A new fact is a class here, in `Fact`, and a method that receives it, in `Scheduler.receivers`; a test checks that they match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from rollmux_env.cluster.events import JobProgress
from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.nodes import PoolName, PoolNode
from rollmux_env.scheduler.view import DispatchPolicy, HoldName

PhaseOfShape = tuple[int, Side]
"""Number of a shape, and a phase of it."""


class _OfJob(NamedTuple):
    job_id: str


class _OfNodes(NamedTuple):
    names: frozenset[str]


class Queued(NamedTuple):
    """Arrival of a job with a known worst case, which wants a place.

    Attributes:
        job: Job that arrives.
        again: Whether it had to give up its place; it then precedes the other jobs of its priority and key in the queue.
        node_names_with_processes: Names of the nodes on which its processes hold its state, or empty if it has none. If it gets
            exactly these now, it begins without a cold start. If it has to wait (`commands.KeepWaiting`), it ends the processes.
    """

    job: Job
    again: bool = False
    node_names_with_processes: Annotated[frozenset[str], Field(alias="alive")] = frozenset()


class Confined(NamedTuple):
    """Restriction of a job that waits, or is about to arrive, to some nodes; reported before `Queued`.

    Attributes:
        job_id: Identifier of the job.
        names: Names of the nodes.
    """

    job_id: str
    names: frozenset[str]


class Alone(_OfJob):
    """Isolation of a job that keeps more memory on its GPUs than it stated: no other job may share a group with it.

    Attributes:
        job_id: Identifier of the job.
    """


class Estimated(NamedTuple):
    """Worst cases of a job about to arrive that are estimates until its iterations have measured them.

    Attributes:
        job_id: Identifier of the job.
        phases: Estimated phases, by number of the shape and name.
    """

    job_id: str
    phases: frozenset[PhaseOfShape]


class Unprofiled(NamedTuple):
    """Request for nodes on which jobs run a worst-case pass each. They have to be measured before they can arrive.

    Attributes:
        needs: Number of nodes that each job asks for, by id and pool.
        rule: Dispatch policy on lent nodes, or None for the usual one. With one, it is reported together with the `Profiled` of the
            last guest, and the jobs use the nodes of that guest's batch.
        names: Names of the nodes that they may use, or empty for any.
        users: User of each job, by id. Lent nodes are charged to them.
        heeds_quotas: Whether the jobs wait while a quota of their users bars them.
    """

    needs: Mapping[str, Mapping[PoolName, int]]
    rule: DispatchPolicy | None = None
    names: frozenset[str] = frozenset()
    users: Mapping[str, str] = {}
    heeds_quotas: bool = False


class Profiled(_OfJob):
    """End of a guest's worst-case pass; the job is no guest any longer.

    Attributes:
        job_id: Identifier of the job.
    """


class Ready(NamedTuple):
    """A phase that could run.

    A rollout is ready after the previous training and sync; a training after its rollout; an init or a sync when it needs all the
    job's nodes. A stale job's rollouts wait for the sync of 1 + staleness iterations before, and become ready while it trains.

    Attributes:
        job_id: Identifier of the job.
        phase: Phase that is ready.
        parts: Parts into which the nodes of a rollout are divided, if it can run on some of them; otherwise empty.
    """

    job_id: str
    phase: HoldName
    parts: tuple[PoolNode, ...] = ()


class Threshold(_OfJob):
    """Point of a rollout at which enough responses are done for the rest to migrate.

    Attributes:
        job_id: Identifier of the job.
    """


class Shrunk(_OfJob):
    """Release of the parts of its nodes that a tail had to leave.

    Attributes:
        job_id: Identifier of the job.
    """


class Finished(NamedTuple):
    """End of a phase, which frees its nodes.

    Attributes:
        job_id: Identifier of the job.
        phase: Phase that has run.
        seconds: Duration.
        cold: Whether it began with a cold start.
        counts: Whether it belongs to an iteration; False for an additional rollout.
        device_gb: Memory that the job keeps on each GPU of a node until its next phase there, in GB.
        cold_s: Seconds of the cold start if they replace the known ones, else None.
    """

    job_id: str
    phase: HoldName
    seconds: float
    cold: bool = False
    counts: bool = True
    device_gb: float = 0.0
    cold_s: float | None = None


class Continued(NamedTuple):
    """Unfinished iteration of a job that had a place before the driver existed; reported before the job's other facts.

    Attributes:
        job_id: Identifier of the job.
        phase: Last phase that it began.
        runs: Whether the phase still has its permit; otherwise it is a finished rollout.
        sampled: Number of finished rollouts without finished training, or None for an on-policy job, for which `phase` and `runs`
            determine it. A stale job reports this fact for each unfinished phase, with 0 from the second one on.
    """

    job_id: str
    phase: HoldName
    runs: bool
    sampled: int | None = None


class Sampled(_OfJob):
    """End of a stale job's last rollout; the job trains the rest.

    Attributes:
        job_id: Identifier of the job.
    """


class Synced(NamedTuple):
    """End of a sync.

    Attributes:
        job_id: Identifier of the job.
        seconds: Duration.
    """

    job_id: str
    seconds: float


class Iterated(NamedTuple):
    """End of an iteration whose results are saved.

    Attributes:
        progress: Total progress of the job.
        seconds: Duration from the request for its rollout to the end of its sync, or None if it was not measured.
        movable: Whether the job turns out to be able to continue elsewhere.
    """

    progress: JobProgress
    seconds: float | None = None
    movable: bool = True


class Vacated(NamedTuple):
    """Departure of a moving job from its old place.

    Attributes:
        job_id: Identifier of the job.
        progress: Progress including what the move cut short, or None if nothing was.
    """

    job_id: str
    progress: JobProgress | None = None


class PauseEnded(_OfJob):
    """End of the pause of a move.

    Attributes:
        job_id: Identifier of the job.
    """


class Left(NamedTuple):
    """Departure of a job between two iterations. The running phases and untrained samples of a stale job are dropped.

    Attributes:
        job_id: Identifier of the job.
        over_budget: Whether its budget was exhausted before the end of its stay.
    """

    job_id: str
    over_budget: bool = False


class YieldedPlace(_OfJob):
    """Departure of a parked job from its place between two iterations, with its progress saved.

    Attributes:
        job_id: Identifier of the job.
    """


class Failed(_OfJob):
    """Failure of a job, loss of one of its processes, or its cancellation. It gets no more permits.

    Attributes:
        job_id: Identifier of the job.
    """


class Cleared(NamedTuple):
    """End of all processes of an evicted job.

    Attributes:
        job_id: Identifier of the job.
        progress: Progress including what it ran and lost, or None if it equals the last report.
    """

    job_id: str
    progress: JobProgress | None = None


class Halted(_OfJob):
    """End of a job's processes because the run stops. The job keeps its place until the run continues.

    Attributes:
        job_id: Identifier of the job.
    """


class Absent(_OfJob):
    """Absence of a job between two iterations, for an unknown time. It blocks no other job until it is ready.

    Attributes:
        job_id: Identifier of the job.
    """


class RequestsWithdrawn(_OfJob):
    """Withdrawal of a job's requests for permits. Phases that it holds continue.

    If it holds none, it drops an unfinished iteration, and blocks no other job until it is ready for a rollout.

    Attributes:
        job_id: Identifier of the job.
    """


class Lost(_OfNodes):
    """Loss of nodes.

    Attributes:
        names: Names of the nodes.
    """


class Drained(_OfNodes):
    """Nodes that get no new jobs from now on. The jobs on them are moved as far as possible.

    Attributes:
        names: Names of the nodes.
    """


class Undrained(_OfNodes):
    """Nodes that get jobs again.

    Attributes:
        names: Names of the nodes.
    """


class Joined(NamedTuple):
    """Nodes that were added to the cluster.

    Attributes:
        nodes: Added nodes.
    """

    nodes: tuple[PoolNode, ...]


class QuotaChanged(NamedTuple):
    """Another quota of a user.

    Attributes:
        user: Name of the user, or `*` for each user who has no own quota.
        quota: The quota, or None to remove the user's own.
    """

    user: str
    quota: Quota | None


class MonthStarted(NamedTuple):
    """Beginning of a calendar month.

    Attributes:
        month: Year and month, such as `2026-12`.
    """

    month: str


class Stop(NamedTuple):
    """Stop of the run: no new phase may begin."""


Fact = (
    Queued
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
    | PauseEnded
    | Left
    | YieldedPlace
    | Failed
    | Cleared
    | Halted
    | Absent
    | RequestsWithdrawn
    | Lost
    | Drained
    | Undrained
    | Joined
    | QuotaChanged
    | MonthStarted
    | Stop
)
