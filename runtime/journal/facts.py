"""What happens in a run, a fact each: what the journal keeps, in the order in which it happened.

`Told` is what the scheduler was told, and the events behind it are what it made of that. All else is what a driver alone knows.
A new fact is a class here, and a field of `RunRecord`; a test holds them together.

Times are seconds since the run began, by the coordinator's clock, which stands still between a kill and a resume.
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
    """The fact of the scheduler's that the journal has so.

    Raises:
        ValueError: there is no such fact.
    """
    if not isinstance(value, dict) or value.get("kind") not in TOLD_KINDS:
        raise ValueError("the scheduler can be told no such fact")
    kind = TOLD_KINDS[value["kind"]]
    fields = _fields(value["kind"])(**{name: one for name, one in value.items() if name != "kind"})
    return kind(**{name: getattr(fields, name) for name in kind._fields})


@cache
def _fields(name: str) -> type[BaseModel]:
    """What checks the fields of a fact of the scheduler's; nodes are those of the runtime."""
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
        """When it was over."""
        return self.end_s


@dataclass(frozen=True)
class Started(_Timed):
    """The first fact of a run.

    Attributes:
        wall_s: seconds since 1970 at time 0.
        policy, dispatch: names, as they were given.
        cluster: pools, prices and limits that the policy sees.
        nodes: all nodes of the run.
        versions: of Python and of the packages that matter.
        seed: of policies that draw at random.
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
    """The run goes on after its end, whatever that was: a kill, a stop, a power cut.

    Attributes:
        at_s: the last time that the journal knew. wall_s: seconds since 1970 at that moment of the run's clock.
        nodes: all nodes from now on.
        versions: as in `Started`.
    """

    wall_s: float
    nodes: tuple[Node, ...]
    versions: dict[str, str]


@dataclass(frozen=True)
class Told(_Timed):
    """What the scheduler was told at an instant. Behind it come the events that followed.

    Attributes:
        facts: read back, `Unprofiled` says only whether there was a rule.
        permits: that it gave then: ids of jobs, and phases.
        stopped: it gives none any more, or none yet, for the sake of nodes that a lost lease may still use.
    """

    facts: tuple[Annotated[scheduler_facts.Fact, PlainValidator(_told_of_json)], ...]
    permits: tuple[tuple[str, HoldName], ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class Restored(_Timed):
    """The scheduler of a run that goes on has taken over the groups and the queue.

    Attributes:
        gone: ids of the jobs that had ended before.
    """

    gone: tuple[str, ...]


@dataclass(frozen=True)
class Submitted(_Timed):
    """A job is to be run.

    Attributes:
        spec: all of it, as its job file says; its `arrival_s` counts from the run's beginning.
    """

    spec: JobSpec


@dataclass(frozen=True)
class Cancelled(_OfJob):
    """A user wants a job no longer."""


@dataclass(frozen=True)
class Profiled(_Timed):
    """A job is known by its worst case from now on.

    Attributes:
        job: as the policy sees it. cached: no pass was needed, it had been measured before.
        waits: how its state may wait between phases, by pool.
        provisional: phases whose cold start was measured before the engine's caches had anything, or without a core: the next one
            that is observed replaces it.
        without_core: phases that had no core for a good part of their seconds, twice: these are without that wait, and not cached.
    """

    job: Job
    cached: bool
    waits: dict[Pool, Waits] = field(default_factory=dict)
    provisional: tuple[Pool, ...] = ()
    without_core: tuple[Pool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseMeasures:
    """What a job's own processes measure of a phase.

    Attributes:
        load_s, offload_s: seconds of bringing state onto the device, and off it. cold: the job's first phase of the kind in its
            placement. stages: parts of loading and offloading that the job named, seconds.
        host_gb: measured host memory of the job on a node afterwards, the largest of the nodes. device_gb: of each GPU.
        stays: the job's state is still on the devices afterwards; else it has been offloaded.
        core_wait_s: how long, since its last phase there, the process that did the work was ready to run and had no core: the
            machine was shared. The longest of several; 0 where the system does not say.
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
    """A phase that held its nodes.

    Attributes:
        job_id: whose. phase: `init` (making the job, on its rollout nodes; of an attached job on all its nodes, a slice for each
            side), `rollout` or `training`.
        profile: it belongs to no iteration that counts: to the worst-case pass of the profiler, or to a `SoloIteration`.
        iteration: of the job, from 0; of a profile, or an attached job's init, -1.
        group: id of its group, or `LEASE`. pool: whose nodes it held; numbers: theirs within the group. nodes: their names.
        asked_s: when the job was ready for it. start_s: permit. end_s: nodes given back. `init` and the rollout that follows it
            share one permit: the second begins where the first ends; where rollouts run ahead it has its own, and is `extra`.
        run_s, done_s: when the method began and ended, by the job's clock: before it came the permit's way and loading.
        permit_s: how long the permit took to reach the job. switched: a node last ran another job.
        ok: False where the phase failed or was cut short.
        spans: of a rollout that was migrated, or ran beside such a tail: what it held of its nodes and when; else none.
        extra: a rollout that counts no iteration.
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
        """What it held of its nodes and when."""
        return self.spans or tuple(Span(node, self.start_s, self.end_s, 1.0, False) for node in self.nodes)

    @property
    def busy_s(self) -> float:
        """Node-seconds in which it ran."""
        spans = ((span.share, max(span.from_s, self.run_s), min(span.until_s, self.done_s)) for span in self.node_spans())
        return sum(share * max(0.0, until_s - from_s) for share, from_s, until_s in spans)


@dataclass(frozen=True)
class Offloaded(_OfJob):
    """State that had stayed on the devices of a phase has left them, since somebody needs the room.

    Attributes:
        pool: of the phase. nodes: names. seconds: it took. host_gb, device_gb: as of `PhaseSlice`, since then.
    """

    pool: Pool
    nodes: tuple[str, ...]
    seconds: float
    host_gb: float
    device_gb: float


@dataclass(frozen=True)
class SyncSlice(_Lasted):
    """Weights on their way to the rollout nodes.

    Attributes:
        nodes: names of the rollout nodes; with a permit, of all nodes of the job. beside: ids of the jobs that held one of them at
            the time. asked_s: when it asked for a permit; None: it had none.
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
    """An iteration is done: rollout, training and sync.

    Attributes:
        number: from 0. start_s: when its rollout was ready for a permit; of a job whose rollouts run ahead, not before the
            iteration before it was over. end_s: when its sync was over.
        metrics: what the job reported, by name; of the built-in job `reward`, `loss`, `sampled_version`, `trained_version`, ...
        interrupted: it has waited for room on a disk, so its length says nothing of the job.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float
    metrics: dict[str, float]
    interrupted: bool = False


@dataclass(frozen=True)
class SoloIteration(_Lasted):
    """An iteration that a job has done behind its last one, alone on the machine; it counts for nothing else.

    Attributes:
        number: from that of the last one on. start_s, end_s: as of `Iteration`.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Checkpointed(_OfJob):
    """What a job is after some iterations is on the disk.

    Attributes:
        iterations: how many it had done. seconds: how long writing took. gb: how much it is, GB.
    """

    iterations: int
    seconds: float
    gb: float


@dataclass(frozen=True)
class Absent(_OfJob):
    """A job waits for room for its checkpoint: until it is ready for a rollout it takes no part in the turns of its group.

    Attributes:
        why: what the system says; one line.
    """

    why: str


@dataclass(frozen=True)
class Restarted(_OfJob):
    """A job is made anew after its processes have ended, and goes on from its last checkpoint; without one it begins again.

    Attributes:
        iteration: the one with which it goes on. Those of this number and above that were recorded before are repeated.
        why: one line.
    """

    iteration: int
    why: str


@dataclass(frozen=True)
class Failed(_OfJob):
    """A job has failed, alone.

    Attributes:
        where: `init`, `rollout`, `training`, `sync`, `step` (between phases), `checkpoint`, `profile`, `resume` or
            `placement`.
        problem: one line. details: a traceback, or nothing.
    """

    where: str
    problem: str
    details: str = ""


@dataclass(frozen=True)
class Ended(_Timed):
    """The last fact of a run that was not killed; of one that was stopped, until it is resumed.

    Attributes:
        outcome: `done` (some jobs may have failed), or `stopped` by the user.
    """

    outcome: Literal["done", "stopped"]


@dataclass(frozen=True)
class Bound:
    """What taking turns could gain on this machine: two independent phases in parallel against one after the other.

    Attributes:
        phases: what they are, as `JOB rollout`.
        alone_s: seconds of each of them alone. parallel_s: while the other runs on the other node.
        gain: their sum alone over the longer of them in parallel.
    """

    phases: tuple[str, str]
    alone_s: tuple[float, float]
    parallel_s: tuple[float, float]

    @property
    def gain(self) -> float:
        """2 where two balanced phases do not slow each other down."""
        return sum(self.alone_s) / max(self.parallel_s)


class OwnProcess(NamedTuple):
    """A process of an owner.

    Attributes:
        started: when the machine started it, in clock ticks since it was booted; 0 where it cannot be seen from here.
    """

    pid: int
    started: int


@dataclass(frozen=True)
class Attached(_OfJob):
    """An owner has a lease of its job's place; again with the same lease, its processes are known anew.

    Attributes:
        lease: its id. host: where the owner says that it is. boot: where the numbers of its processes mean something, as
            `rollmux_client.pid_space`, where they mean the same for the service; else empty. processes: those that it has named.
            nodes: names of the nodes of the place.
    """

    lease: str
    host: str
    boot: str
    processes: tuple[OwnProcess, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class TakenBack(_OfJob):
    """The owner of a job continues from a checkpoint that is older than the iterations counted so far; they are done again.

    Attributes:
        lease: Identifier of the owner's lease.
        iteration: First iteration that is done again. Those of this number and above that were recorded before are repeated.
    """

    lease: str
    iteration: int


@dataclass(frozen=True)
class Exceeded(_OfJob):
    """A job keeps more memory of its nodes' GPUs than it has stated: from now on it is alone in its group.

    Attributes:
        phase: of which it is. device_gb, stated_gb: what it keeps, and what it has stated, GB.
    """

    phase: HoldName
    device_gb: float
    stated_gb: float

    @property
    def why(self) -> str:
        """In words; one line."""
        keeps = f"keeps {self.device_gb:.2f} GB of its {self.phase} nodes' GPUs"
        return f"{keeps} and has stated {self.stated_gb:.2f} GB: alone in its group"


@dataclass(frozen=True)
class Granted(_OfJob):
    """An owner is being told that it may run a phase.

    Attributes:
        phase, iteration: which. extra: a rollout that counts no iteration.
        asked_s, start_s, switched: as of `PhaseSlice`, which says later that it is over.
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
    """A lease is over.

    Attributes:
        done: so is the job, as its owner says. why: one line.
    """

    lease: str
    done: bool
    why: str


@dataclass(frozen=True)
class Suspected(_OfJob):
    """Nodes that a lease held when it was lost: nobody gets them until it is known that its owner does not use them.

    Attributes:
        nodes: their names.
    """

    lease: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Freed(_OfJob):
    """Nodes that a lost lease held are not used by its owner any more.

    Attributes:
        nodes: their names. why: how that is known; one line.
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
