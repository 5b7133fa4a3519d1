"""The facts of a run, as its journal keeps them in the order in which they happened.

A `Told` fact records what was reported to the scheduler, and is followed by the events that resulted. All other facts are known
only to a driver. A new fact needs a class here and a field of `RunRecord`; a test checks that both exist.

Times are seconds since the run began, by the coordinator's clock, which does not run between a kill and a resume.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, cast, get_type_hints

from pydantic import BaseModel, PlainValidator, create_model
from pydantic.fields import FieldInfo

from rollmux_env.cluster import events
from rollmux_env.cluster.events import Event
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.scheduler.nodes import LEASE as LEASE
from rollmux_env.scheduler.nodes import Assigned as Assigned
from rollmux_env.scheduler.nodes import Returned as Returned
from rollmux_env.scheduler.nodes import Span as Span
from rollmux_env.scheduler.view import HoldName
from runtime.jobs.spec import JobSpec
from runtime.machine import Node, Pool
from runtime.residency.choice import Waits

# The name of each kind of fact in journals, apart from its Python name: a class may be renamed, and old journals are still read. A
# field that is renamed keeps its name in journals as `Annotated[float, Field(alias="...")]`.
TOLD_KINDS: dict[str, type[scheduler_facts.Fact]] = {
    "Arrived": scheduler_facts.Arrived,
    "Confined": scheduler_facts.Confined,
    "Alone": scheduler_facts.Alone,
    "Estimated": scheduler_facts.Estimated,
    "Unprofiled": scheduler_facts.Unprofiled,
    "Profiled": scheduler_facts.Profiled,
    "Ready": scheduler_facts.Ready,
    "Threshold": scheduler_facts.Threshold,
    "Shrunk": scheduler_facts.Shrunk,
    "Finished": scheduler_facts.Finished,
    "Continued": scheduler_facts.Continued,
    "Sampled": scheduler_facts.Sampled,
    "Synced": scheduler_facts.Synced,
    "Iterated": scheduler_facts.Iterated,
    "Vacated": scheduler_facts.Vacated,
    "Resumed": scheduler_facts.Resumed,
    "Left": scheduler_facts.Left,
    "Failed": scheduler_facts.Failed,
    "Cleared": scheduler_facts.Cleared,
    "Halted": scheduler_facts.Halted,
    "Absent": scheduler_facts.Absent,
    "Lost": scheduler_facts.Lost,
    "Drained": scheduler_facts.Drained,
    "Undrained": scheduler_facts.Undrained,
    "Joined": scheduler_facts.Joined,
    "Stop": scheduler_facts.Stop,
}


def _told_of_json(value: Any) -> scheduler_facts.Fact:
    """Parse a fact of the scheduler from its form in journals.

    Raises:
        ValueError: There is no such fact.
    """
    if not isinstance(value, dict) or value.get("kind") not in TOLD_KINDS:
        raise ValueError("the scheduler can be told no such fact")
    kind = TOLD_KINDS[value["kind"]]
    fields = _fields(value["kind"])(**{name: one for name, one in value.items() if name != "kind"})
    return kind(**{name: getattr(fields, name) for name in kind._fields})


@cache
def _fields(name: str) -> type[BaseModel]:
    """Return a model that validates the fields of a fact of the scheduler. Its nodes are those of the runtime."""
    kind = TOLD_KINDS[name]
    hints = _hints(kind)
    fields: dict[str, Any] = {one: (hints[one], kind._field_defaults.get(one, ...)) for one in kind._fields}
    return cast("type[BaseModel]", create_model(name, **fields))


@dataclass(frozen=True)
class _Timed:
    at_s: float


@dataclass(frozen=True)
class _OfJob(_Timed):
    job_id: str


class _Lasted:
    end_s: float

    @property
    def at_s(self) -> float:
        """Time at which it ended, seconds."""
        return self.end_s


@dataclass(frozen=True)
class Started(_Timed):
    """The first fact of a run.

    Attributes:
        wall_s: Seconds since 1970 at time 0.
        policy: Name of the placement policy, as it was given.
        dispatch: Name of the dispatch policy, as it was given.
        cluster: Pools, prices and limits that the policy sees.
        nodes: All nodes of the run.
        versions: Versions of Python and of the main packages.
        seed: Seed of policies with random choices.
    """

    wall_s: float
    policy: str
    dispatch: str
    cluster: Cluster
    nodes: tuple[Node, ...]
    versions: dict[str, str]
    seed: int


@dataclass(frozen=True)
class Relaunched(_Timed):
    """The run resumes after an end of any kind: a kill, a stop, a power failure. Its `at_s` is the last time in the journal.

    Attributes:
        wall_s: Seconds since 1970 at that time of the run's clock.
        nodes: All nodes from now on.
        versions: Versions as in `Started`.
    """

    wall_s: float
    nodes: tuple[Node, ...]
    versions: dict[str, str]


@dataclass(frozen=True)
class Told(_Timed):
    """A report to the scheduler at one instant, followed by the events that resulted.

    Attributes:
        facts: The reported facts. When read back, `Unprofiled` states only whether there was a rule.
        permits: Permits that the scheduler granted in this instant, as job ids and phases.
        stopped: Whether it grants no permits, because of a shutdown or of nodes that a lost lease may still use.
    """

    facts: tuple[Annotated[scheduler_facts.Fact, PlainValidator(_told_of_json)], ...]
    permits: tuple[tuple[str, HoldName], ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class Restored(_Timed):
    """The scheduler of a resumed run has taken over the groups and the queue.

    Attributes:
        gone: Ids of the jobs that had already ended.
    """

    gone: tuple[str, ...]


@dataclass(frozen=True)
class Submitted(_Timed):
    """A job is submitted.

    Attributes:
        spec: The complete job file of the job. Its `arrival_s` counts from the beginning of the run.
    """

    spec: JobSpec


@dataclass(frozen=True)
class Cancelled(_OfJob):
    """A user has cancelled a job."""


@dataclass(frozen=True)
class Profiled(_Timed):
    """A job has a profile from now on, measured in its worst case.

    Attributes:
        job: The job as the policy sees it.
        cached: Whether the profile came from the cache, without a measurement.
        waits: Measured ways in which the job's state may wait between phases, by pool.
        provisional: Phases whose cold start was measured before the engine's caches had any content, or without a core. The next
            observed cold start replaces it.
        without_core: Phases that lacked a core for a good part of their seconds in two measurements. Their times exclude this wait
            and are not cached.
    """

    job: Job
    cached: bool
    waits: dict[Pool, Waits] = field(default_factory=dict)
    provisional: tuple[Pool, ...] = ()
    without_core: tuple[Pool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseMeasures:
    """Measurements of a phase by the job's own processes.

    Attributes:
        load_s: Seconds to bring the state to the device.
        offload_s: Seconds to move the state off the device.
        cold: Whether it is the job's first phase of this kind in its placement.
        stages: Seconds of the parts of loading and offloading that the job has named.
        host_gb: Host memory of the job on a node afterwards, GB, on the node with the most.
        device_gb: Memory of the job on a GPU afterwards, GB, on the GPU with the most.
        stays: Whether the job's state is still on the devices afterwards. Otherwise it has been offloaded.
        core_wait_s: Seconds since its last phase there in which the working process was ready to run but had no core, because the
            machine was shared; the longest of several processes, and 0 if the system does not tell.
    """

    load_s: float = 0.0
    offload_s: float = 0.0
    cold: bool = False
    stages: dict[str, float] = field(default_factory=dict)
    host_gb: float = 0.0
    device_gb: float = 0.0
    stays: bool = False
    core_wait_s: float = 0.0


@dataclass(frozen=True)
class PhaseSlice(PhaseMeasures, _Lasted):
    """A phase with the nodes that it held.

    Attributes:
        job_id: Id of the job.
        phase: `rollout`, `training`, or `init`, which creates the job on its rollout nodes. An attached job's init is on all its
            nodes, with a slice for each side.
        profile: Whether it belongs to no iteration that counts, but to the profiler's worst-case pass or to a `SoloIteration`.
        iteration: Number of the job's iteration, from 0. -1 for a profile and for an attached job's init.
        group: Id of the job's group, or `LEASE`.
        pool: Pool of the nodes.
        numbers: Numbers of the nodes within the group.
        nodes: Names of the nodes.
        asked_s: Time at which the job was ready for the phase.
        start_s: Time of the permit.
        end_s: Time at which the nodes were given back. `init` and the rollout after it share one permit: the second begins where
            the first ends. If rollouts run ahead, the init has its own permit and is `extra`.
        run_s: Time at which the job's method began, by the job's clock. Before it come the delivery of the permit and loading.
        done_s: Time at which the job's method ended, by the job's clock.
        permit_s: Seconds until the permit reached the job.
        switched: Whether a node last ran another job.
        ok: Whether the phase completed. False if it failed or was cut short.
        spans: Shares of nodes over time, for a rollout that was migrated or ran beside a migrated tail. Empty otherwise.
        extra: Whether it is a rollout that counts as no iteration.
    """

    job_id: str
    phase: Literal["init", "rollout", "training"]
    profile: bool
    iteration: int
    group: int
    pool: Pool
    numbers: tuple[int, ...]
    nodes: tuple[str, ...]
    asked_s: float
    start_s: float
    end_s: float
    run_s: float
    done_s: float
    permit_s: float = 0.0
    switched: bool = False
    ok: bool = True
    spans: tuple[Span, ...] = ()
    extra: bool = False

    def node_spans(self) -> tuple[Span, ...]:
        """Return the shares of nodes that it held over time."""
        return self.spans or tuple(Span(node, self.start_s, self.end_s, 1.0, False) for node in self.nodes)

    @property
    def busy_s(self) -> float:
        """Node-seconds in which the job's method ran."""
        spans = ((span.share, max(span.from_s, self.run_s), min(span.until_s, self.done_s)) for span in self.node_spans())
        return sum(share * max(0.0, until_s - from_s) for share, from_s, until_s in spans)


@dataclass(frozen=True)
class Offloaded(_OfJob):
    """State that had stayed on devices after a phase has been offloaded, because another job needs the memory.

    Attributes:
        pool: Pool of the phase.
        nodes: Names of the nodes.
        seconds: Seconds of the offload.
        host_gb: Host memory since then, as in `PhaseSlice`, GB.
        device_gb: Device memory since then, as in `PhaseSlice`, GB.
    """

    pool: Pool
    nodes: tuple[str, ...]
    seconds: float
    host_gb: float
    device_gb: float


@dataclass(frozen=True)
class SyncSlice(_Lasted):
    """A transfer of new weights to the rollout nodes.

    Attributes:
        job_id: Id of the job.
        profile: Whether it belongs to no iteration that counts.
        iteration: Number of the job's iteration.
        nodes: Names of the rollout nodes, or of all nodes of the job for a sync with a permit.
        start_s: Start of the transfer.
        end_s: End of the transfer.
        beside: Ids of the jobs that held one of the nodes at the time.
        asked_s: Time at which the job asked for a permit, or None for a sync without one.
    """

    job_id: str
    profile: bool
    iteration: int
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    beside: tuple[str, ...]
    asked_s: float | None = None


@dataclass(frozen=True)
class Iteration(_Lasted):
    """A completed iteration: rollout, training and sync.

    Attributes:
        job_id: Id of the job.
        number: Number of the iteration, from 0.
        start_s: Time at which its rollout was ready for a permit. If rollouts run ahead, not before the end of the iteration
            before.
        end_s: End of its sync.
        metrics: Figures that the job reported, by name. The built-in job has `reward`, `loss`, `sampled_version`,
            `trained_version`, and more.
        interrupted: Whether it waited for space on a disk, so that its length is not representative.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float
    metrics: dict[str, float]
    interrupted: bool = False


@dataclass(frozen=True)
class SoloIteration(_Lasted):
    """An iteration that a job did after its last one, alone on the machine. It counts for nothing else.

    Attributes:
        job_id: Id of the job.
        number: Number, continuing after the last iteration.
        start_s: Start, as in `Iteration`.
        end_s: End, as in `Iteration`.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Checkpointed(_OfJob):
    """The state of a job after some iterations has been written to disk.

    Attributes:
        iterations: Number of iterations that the job had done.
        seconds: Seconds of writing.
        gb: Size of the checkpoint, GB.
    """

    iterations: int
    seconds: float
    gb: float


@dataclass(frozen=True)
class Absent(_OfJob):
    """A job waits for disk space for its checkpoint. Until it is ready for a rollout it takes no part in the turns of its group.

    Attributes:
        why: Error of the system, one line.
    """

    why: str


@dataclass(frozen=True)
class Restarted(_OfJob):
    """A job is created again after its processes have ended, and continues from its last checkpoint or from the beginning.

    Attributes:
        iteration: Number of the iteration with which it continues. Recorded iterations from this number on are repeated.
        why: Reason, one line.
    """

    iteration: int
    why: str


@dataclass(frozen=True)
class Failed(_OfJob):
    """A job has failed. Other jobs are not affected.

    Attributes:
        where: `init`, `rollout`, `training`, `sync`, `step` (between phases), `checkpoint`, `profile`, `resume` or
            `placement`.
        problem: Description in one line.
        details: Traceback, or an empty string.
    """

    where: str
    problem: str
    details: str = ""


@dataclass(frozen=True)
class Ended(_Timed):
    """The last fact of a run that was not killed. A stopped run may be resumed after it.

    Attributes:
        outcome: `done` (even if some jobs have failed), or `stopped` by the user.
    """

    outcome: Literal["done", "stopped"]


@dataclass(frozen=True)
class Bound:
    """Upper bound of what sharing can gain on this machine, from two independent phases in parallel and one after the other.

    Attributes:
        phases: The two phases, each as `JOB rollout` or `JOB training`.
        alone_s: Seconds of each phase alone.
        parallel_s: Seconds of each phase while the other runs on the other node.
    """

    phases: tuple[str, str]
    alone_s: tuple[float, float]
    parallel_s: tuple[float, float]

    @property
    def gain(self) -> float:
        """Sum of the seconds alone over the longer one in parallel; 2 for balanced phases that do not slow each other down."""
        return sum(self.alone_s) / max(self.parallel_s)


class OwnProcess(NamedTuple):
    """A process of an owner.

    Attributes:
        pid: Process id.
        started: Time at which it was started, in clock ticks since the machine was booted, or 0 if it cannot be seen from here.
    """

    pid: int
    started: int


@dataclass(frozen=True)
class Attached(_OfJob):
    """An owner has a lease of its job's placement. Repeated with the same lease when its processes have changed.

    Attributes:
        lease: Id of the lease.
        host: Name of the owner's machine, as the owner states it.
        boot: Scope of the process ids, as returned by `rollmux_client.pid_space`, if the service shares it; otherwise empty.
        processes: Processes that the owner has named.
        nodes: Names of the nodes of the placement.
    """

    lease: str
    host: str
    boot: str
    processes: tuple[OwnProcess, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TakenBack(_OfJob):
    """The owner of a job continues from a checkpoint older than the counted iterations. The later iterations are done again.

    Attributes:
        lease: Id of the owner's lease.
        iteration: First iteration that is done again. Recorded iterations from this number on are repeated.
    """

    lease: str
    iteration: int


@dataclass(frozen=True)
class Exceeded(_OfJob):
    """A job keeps more memory on its nodes' GPUs than it has stated. From now on it is alone in its group.

    Attributes:
        phase: Phase after which it was measured.
        device_gb: Memory that the job keeps, GB.
        stated_gb: Memory that its entry states, GB.
    """

    phase: HoldName
    device_gb: float
    stated_gb: float

    @property
    def why(self) -> str:
        """Description in one line."""
        keeps = f"keeps {self.device_gb:.2f} GB of its {self.phase} nodes' GPUs"
        return f"{keeps} and has stated {self.stated_gb:.2f} GB: alone in its group"


@dataclass(frozen=True)
class Granted(_OfJob):
    """An owner gets the permit for a phase. A `PhaseSlice` records later that the phase is over.

    Attributes:
        lease: Id of the owner's lease.
        phase: Name of the phase.
        iteration: Number of the iteration.
        extra: Whether it is a rollout that counts as no iteration.
        asked_s: Time of the request, as in `PhaseSlice`.
        start_s: Time of the permit, as in `PhaseSlice`.
        switched: Whether a node last ran another job.
    """

    lease: str
    phase: HoldName
    iteration: int
    extra: bool
    asked_s: float
    start_s: float
    switched: bool


@dataclass(frozen=True)
class LeaseEnded(_OfJob):
    """A lease has ended.

    Attributes:
        lease: Id of the lease.
        done: Whether its owner has reported the job as complete.
        why: Reason, one line.
    """

    lease: str
    done: bool
    why: str


@dataclass(frozen=True)
class Suspected(_OfJob):
    """Nodes that a lease held when it was lost. No job gets them until it is known that the owner does not use them.

    Attributes:
        lease: Id of the lease.
        nodes: Names of the nodes.
    """

    lease: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Freed(_OfJob):
    """The owner of a lost lease does not use some of its nodes any more.

    Attributes:
        lease: Id of the lease.
        nodes: Names of the nodes.
        why: Evidence for it, one line.
    """

    lease: str
    nodes: tuple[str, ...]
    why: str


Fact = _Timed | _Lasted | Bound | Assigned | Returned | Event


KINDS: dict[str, type] = {
    "Cancelled": Cancelled,
    "Offloaded": Offloaded,
    "Checkpointed": Checkpointed,
    "Absent": Absent,
    "Restarted": Restarted,
    "Failed": Failed,
    "Attached": Attached,
    "TakenBack": TakenBack,
    "Exceeded": Exceeded,
    "Granted": Granted,
    "LeaseEnded": LeaseEnded,
    "Suspected": Suspected,
    "Freed": Freed,
    "Started": Started,
    "Relaunched": Relaunched,
    "Told": Told,
    "Restored": Restored,
    "Submitted": Submitted,
    "Profiled": Profiled,
    "Ended": Ended,
    "PhaseSlice": PhaseSlice,
    "SyncSlice": SyncSlice,
    "Iteration": Iteration,
    "SoloIteration": SoloIteration,
    "Bound": Bound,
    "Assigned": Assigned,
    "Returned": Returned,
    "Arrived": events.Arrived,
    "Requeued": events.Requeued,
    "Warm": events.Warm,
    "Admitted": events.Admitted,
    "Begun": events.Begun,
    "Moved": events.Moved,
    "Resumed": events.Resumed,
    "Departed": events.Departed,
    "OverBudget": events.OverBudget,
    "Withdrawn": events.Withdrawn,
    "Reprofiled": events.Reprofiled,
    "Progressed": events.Progressed,
    "Ticked": events.Ticked,
    "Resized": events.Resized,
}
_NAMES = {kind: name for kinds in (TOLD_KINDS, KINDS) for name, kind in kinds.items()}


def kind_of(fact: object) -> str:
    """Return the name of a fact's kind in journals."""
    return _NAMES[type(fact)]


def fields_of(fact: Any) -> dict[str, Any]:
    """Return the fields of a fact, or of a record inside one, by their names in journals."""
    kind: Any = type(fact)
    fields: dict[str, Any] = fact._asdict() if hasattr(fact, "_asdict") else vars(fact)
    renamed = _renamed(kind)
    return {renamed.get(name, name): value for name, value in fields.items()} if renamed else fields


@cache
def _renamed(kind: Any) -> dict[str, str]:
    """Return the names in journals of the fields that Python knows by other names."""
    marks = ((name, mark) for name, hint in _hints(kind).items() for mark in getattr(hint, "__metadata__", ()))
    return {name: mark.alias for name, mark in marks if isinstance(mark, FieldInfo) and mark.alias is not None}


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns={"PoolNode": Node, "DispatchPolicy": object}, include_extras=True)
