"""Events: the only way in which a state changes. The log of all events describes a run.

Every event has its time, `at_s`, in seconds of the clock of the replay or run. An event of one job has the job's id, `job_id`. A
job that is placed runs until its stay ends: until it has done its `iterations`, or for its `duration_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.cluster.demand import demand_of
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.queue import Quota


@dataclass(frozen=True)
class Placement:
    """The nodes on which a job runs.

    Attributes:
        group: Id of the group that the job joins, or None for a new group.
        rollout_nodes: Numbers of the group's existing rollout nodes to which the job is pinned, ascending.
        new_rollout_nodes: Number of rollout nodes to add for the job.
        training_nodes: Number of training nodes of a new group, 0 for an existing group.
        colocated: Whether the new group has training nodes only, on which the job runs both phases in turn.
        shape: Number of the shape in which the job runs: 0 for the job as written, k for the k-th of `Job.shapes`.
    """

    group: int | None
    rollout_nodes: tuple[int, ...] = ()
    new_rollout_nodes: int = 0
    training_nodes: int = 0
    colocated: bool = False
    shape: int = 0

    @property
    def strategy(self) -> str:
        """Kind of admission (paper, section 4): `direct_packing`, `rollout_scaling` or `isolated`."""
        if self.group is None:
            return "isolated"
        return "rollout_scaling" if self.new_rollout_nodes else "direct_packing"


def isolated(job: Job, cluster: Cluster | None = None) -> Placement:
    """Return the placement in a new group of the nodes that the job asks for in shape 0.

    Args:
        job: The job.
        cluster: Cluster of the job, or None for one without `one_device`. On a `one_device` cluster the group has training nodes
            only.
    """
    demand = demand_of(job, cluster)
    return Placement(None, (), demand.rollout_nodes, demand.training_nodes)


@dataclass(frozen=True)
class _OfJob:
    at_s: float
    job_id: str


@dataclass(frozen=True)
class _Placed(_OfJob):
    placement: Placement


@dataclass(frozen=True)
class Arrived:
    """A job arrives and waits for a placement.

    Attributes:
        at_s: Time of the event, seconds. A policy that is asked again for a waiting job gets the present time.
        job: The job.
    """

    at_s: float
    job: Job


class Requeued(Arrived):
    """A job that had to give up its placement waits for another, ahead of all other jobs of its priority."""


@dataclass(frozen=True)
class Warm:
    """The next job for which the policy is asked has live processes. At this time it can enter one placement without a cold start.

    Attributes:
        at_s: Time of the event, seconds.
        job_id: Id of the job.
        group: Id of the group on whose nodes the processes are, or None for nodes that would form a new group.
        nodes: Names of these nodes.
    """

    at_s: float
    job_id: str
    group: int | None
    nodes: tuple[str, ...] = ()


class Admitted(_Placed):
    """A waiting job is placed and runs. One that was parked makes no progress until its pause (`resume_s`) ends."""


class Begun(_OfJob):
    """A running job has loaded its models and started its engines in a turn of its group.

    Its SLO counts from now on, without the time of a cold start.
    """


class Moved(_Placed):
    """A running job gets another placement. It makes no progress until its pause (`migration_s`) ends."""


class Resumed(_OfJob):
    """The pause of a job that was moved or parked ends, and the nodes that a moved job left are given back."""


class Departed(_OfJob):
    """A running job leaves because it has completed its stay, or because it has ended early in a real run.

    Attributes:
        at_s: Time of the event, seconds.
        job_id: Id of the job.
    """


class OverBudget(Departed):
    """A job has exhausted its budget and leaves before it has completed its stay."""


@dataclass(frozen=True)
class Parked(_OfJob):
    """A running job gives up its place, keeps its progress, and waits for another place.

    Attributes:
        at_s: Time of the event, seconds.
        job_id: Id of the job.
        for_job: Id of the waiting job that gets a place instead, or an empty text.
    """

    for_job: str = ""


class Withdrawn(_OfJob):
    """A waiting job leaves the queue without having been placed."""


@dataclass(frozen=True)
class Reprofiled:
    """A waiting or running job gets other phase times or memory from now on. Its nodes and its stay remain the same.

    Attributes:
        at_s: Time of the event, seconds.
        job: The job with its new times and memory, and the same id.
    """

    at_s: float
    job: Job


class JobProgress(NamedTuple):
    """Observed progress of a job.

    Attributes:
        job_id: Id of the job.
        iterations: Iterations that the job has finished, with fractions in replays of steady periods.
        rollout_busy_s: Node-seconds of its phases on rollout nodes, including phases that a move cut short.
        training_busy_s: Node-seconds of its phases on training nodes, including phases that a move cut short.
    """

    job_id: str
    iterations: float
    rollout_busy_s: float
    training_busy_s: float


@dataclass(frozen=True)
class Progressed:
    """Some jobs have made progress since the last such event. Only for a state that is `observed`.

    Attributes:
        at_s: Time of the event, seconds.
        jobs: Total progress of each of these jobs so far.
    """

    at_s: float
    jobs: tuple[JobProgress, ...]


@dataclass(frozen=True)
class Ticked:
    """Time has passed, for policies with `wakes_every_s` (see `rollmux_env.cluster.plan.Policy`).

    Attributes:
        at_s: Time of the event, seconds.
    """

    at_s: float


@dataclass(frozen=True)
class Resized:
    """The pools have other numbers of nodes from now on, because nodes have died or a run resumes on other machines.

    Attributes:
        at_s: Time of the event, seconds.
        rollout_nodes: New `max_nodes` of the pool `rollout`.
        training_nodes: New `max_nodes` of the pool `training`.
    """

    at_s: float
    rollout_nodes: int
    training_nodes: int


@dataclass(frozen=True)
class Lent:
    """Other nodes are lent from now on to jobs that are profiled, which are charged for them in equal parts.

    Attributes:
        at_s: Time of the event, seconds.
        users: User of each of these jobs, by id; empty if no nodes are lent any longer.
        rollout_nodes: Number of lent nodes of the pool `rollout`.
        training_nodes: Number of lent nodes of the pool `training`.
    """

    at_s: float
    users: Mapping[str, str]
    rollout_nodes: int
    training_nodes: int


@dataclass(frozen=True)
class QuotaSet:
    """A user has another quota from now on.

    Attributes:
        at_s: Time of the event, seconds.
        user: Name of the user, or `*` for each user who has no own quota.
        quota: The quota, or None to remove the user's own.
    """

    at_s: float
    user: str
    quota: Quota | None = None


@dataclass(frozen=True)
class MonthBegun:
    """A calendar month begins, so that limits and accounts of a month begin again.

    Attributes:
        at_s: Time of the event, seconds.
        month: Year and month, such as `2026-12`.
    """

    at_s: float
    month: str


class CarriedUsage(NamedTuple):
    """Usage of a user that was settled before a journal was rolled over.

    Attributes:
        user: Name of the user.
        node_s: Node-seconds charged so far, halved every half-life.
        month_s: Node-seconds charged since the month began.
    """

    user: str
    node_s: float
    month_s: float


class CarriedLength(NamedTuple):
    """Length of a job that had departed before a journal was rolled over.

    Attributes:
        job_id: Identifier in place of the job's, `#` and a number, which no later job can have.
        class_name: Class of the job.
        length_h: Work that it has done, in hours of T_solo.
    """

    job_id: str
    class_name: str
    length_h: float


@dataclass(frozen=True)
class Carried:
    """The first event after a journal was rolled over: what remains known of the jobs before, of which none is present.

    Attributes:
        at_s: Time of the event, seconds.
        month: Present year and month, such as `2026-12`.
        usage: Usage of each user who has any.
        lengths_h: Lengths of the last departed jobs, in order of departure.
    """

    at_s: float
    month: str
    usage: tuple[CarriedUsage, ...] = ()
    lengths_h: tuple[CarriedLength, ...] = ()


Event = (
    Arrived
    | Requeued
    | Warm
    | Admitted
    | Begun
    | Moved
    | Resumed
    | Departed
    | OverBudget
    | Parked
    | Withdrawn
    | Reprofiled
    | Progressed
    | Ticked
    | Resized
    | Lent
    | QuotaSet
    | MonthBegun
    | Carried
)
