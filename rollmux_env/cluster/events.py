"""Events: the only way in which a state changes. A log of them is a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.cluster.demand import demand_of
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job


@dataclass(frozen=True)
class Placement:
    """Where a job runs.

    Attributes:
        group: id of the group that it joins, None for a new one.
        rollout_nodes: numbers of the group's existing rollout nodes that it is pinned to, ascending.
        new_rollout_nodes: rollout nodes to add for it.
        training_nodes: size of a new group's training pool; 0 with an existing group.
        colocated: a new group of training nodes alone, where the job runs both phases one after the other.
        shape: in which it runs (`rollmux_env.keys.job.Job.phases`).
    """

    group: int | None
    rollout_nodes: tuple[int, ...] = ()
    new_rollout_nodes: int = 0
    training_nodes: int = 0
    colocated: bool = False
    shape: int = 0

    @property
    def strategy(self) -> str:
        """`direct_packing`, `rollout_scaling` or `isolated` (paper, section 4)."""
        if self.group is None:
            return "isolated"
        return "rollout_scaling" if self.new_rollout_nodes else "direct_packing"


def isolated(job: Job, cluster: Cluster | None = None) -> Placement:
    """A new group of the nodes that the job asks for; with a cluster that is `one_device`, of training nodes alone."""
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
    """A job is known and waits for a place."""

    at_s: float
    job: Job


class Requeued(Arrived):
    """A job that had to give up its place waits for another one, before all others of its priority."""


@dataclass(frozen=True)
class Warm:
    """The policy is about to be asked for a job whose processes are alive: at this instant it can enter one place without a cold
    start.

    Attributes:
        group: id of the group whose nodes are those of the job's processes; None: they would be those of a new group.
        nodes: names of these.
    """

    at_s: float
    job_id: str
    group: int | None
    nodes: tuple[str, ...] = ()


class Admitted(_Placed):
    """A waiting job has a place and runs."""


class Begun(_OfJob):
    """A running job has loaded its models and started its engines under a permit: its SLO counts from now on, as of a warm one."""


class Moved(_Placed):
    """A running job has another place; it makes no progress until its pause (`migration_s`) ends."""


class Resumed(_OfJob):
    """The pause of a moved job has ended; the nodes that it left are given back."""


class Departed(_OfJob):
    """A job has done its stay and leaves."""


class OverBudget(Departed):
    """A job's budget is spent, and it leaves before it has done its stay."""


class Withdrawn(_OfJob):
    """A waiting job leaves the queue without having had a place."""


@dataclass(frozen=True)
class Reprofiled:
    """A job that waits or runs is known by other phase times or memory from now on; its nodes and its stay are the same."""

    at_s: float
    job: Job


class Progress(NamedTuple):
    """What a job has done so far, as observed.

    Attributes:
        iterations: iterations that it has finished; with fractions in replays of steady periods.
        rollout_busy_s, training_busy_s: node-seconds of its phases on the nodes of either side, those of whole
            iterations and of what a move cut short.
    """

    job_id: str
    iterations: float
    rollout_busy_s: float
    training_busy_s: float


@dataclass(frozen=True)
class Progressed:
    """What was observed of some jobs since the last such event; only of a state that is `observed`."""

    at_s: float
    jobs: tuple[Progress, ...]


@dataclass(frozen=True)
class Ticked:
    """Time has passed; for policies that ask to be woken (see `rollmux_env.cluster.plan.Policy`)."""

    at_s: float


@dataclass(frozen=True)
class Resized:
    """The pools have so many nodes from now on: some have died, or a run goes on where there are others."""

    at_s: float
    rollout_nodes: int
    training_nodes: int


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
    | Withdrawn
    | Reprofiled
    | Progressed
    | Ticked
    | Resized
)
