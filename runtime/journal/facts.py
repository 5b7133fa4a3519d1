"""The facts of a run, as its journal keeps them in the order in which they happened.

A `SchedulerInformed` fact records what was reported to the scheduler, and is followed by the events that resulted. All other facts
are known only to a driver. A new fact needs a class here, a name in `runtime.journal.kinds` and a field of `RunRecord`; a test
checks that all three exist. `runtime.journal.carry` carries it over to the next part, unless it says otherwise.

Times are seconds since the run began, by the coordinator's clock, which does not run between a kill and a resume.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PlainValidator
from rollmux_protocol import PhaseName, Turn

from rollmux_env.cluster.events import Event
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.scheduler.nodes import PROFILING_GROUP as PROFILING_GROUP
from rollmux_env.scheduler.nodes import Assigned as Assigned
from rollmux_env.scheduler.nodes import NodeShareSpan as NodeShareSpan
from rollmux_env.scheduler.nodes import Returned as Returned
from rollmux_env.scheduler.view import HoldName
from runtime.jobs.spec import JobSpec
from runtime.journal.scheduler_kinds import scheduler_fact_of_json
from runtime.machine import Node, Pool
from runtime.residency.choice import OffloadLevels


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
class RunStarted(_Timed):
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
class RunRelaunched(_Timed):
    """The run resumes after an end of any kind: a kill, a stop, a power failure. Its `at_s` is the last time in the journal.

    Attributes:
        wall_s: Seconds since 1970 at that time of the run's clock.
        nodes: All nodes from now on.
        versions: Versions as in `RunStarted`.
    """

    wall_s: float
    nodes: tuple[Node, ...]
    versions: dict[str, str]


@dataclass(frozen=True)
class SchedulerInformed(_Timed):
    """A report to the scheduler at one instant, followed by the events that resulted.

    Attributes:
        facts: The reported facts. When read back, `Unprofiled` states only whether there was a rule.
        permits: Permits that the scheduler granted in this instant, as job ids and phases.
        stopped: Whether it grants no permits, because of a shutdown or of nodes that a lost lease may still use.
    """

    facts: tuple[Annotated[scheduler_facts.Fact, PlainValidator(scheduler_fact_of_json)], ...]
    permits: tuple[tuple[str, HoldName], ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class SchedulerRestored(_Timed):
    """The scheduler of a resumed run has taken over the groups and the queue.

    Attributes:
        gone: Ids of the jobs that had already ended.
        staying: Names of the nodes on which the owners of attached jobs were within an iteration, by id of the jobs that are to
            move after it.
    """

    gone: tuple[str, ...]
    staying: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobSubmitted(_Timed):
    """A job is submitted.

    Attributes:
        spec: The complete job file of the job. Its `arrival_s` counts from the beginning of the run.
    """

    spec: JobSpec


@dataclass(frozen=True)
class JobCancelled(_OfJob):
    """A user has cancelled a job."""


@dataclass(frozen=True)
class JobProfiled(_Timed):
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
    waits: dict[Pool, OffloadLevels] = field(default_factory=dict)
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
        profile: Whether it belongs to no iteration that counts, but to the profiler's worst-case pass or to a `SoloIterationSlice`.
        iteration: Number of the job's iteration, from 0. -1 for a profile and for an attached job's init.
        group: Id of the job's group, or `PROFILING_GROUP`.
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
    spans: tuple[NodeShareSpan, ...] = ()
    extra: bool = False

    def node_spans(self) -> tuple[NodeShareSpan, ...]:
        """Return the shares of nodes that it held over time."""
        return self.spans or tuple(NodeShareSpan(node, self.start_s, self.end_s, 1.0, False) for node in self.nodes)

    @property
    def busy_s(self) -> float:
        """Node-seconds in which the job's method ran."""
        spans = ((span.share, max(span.from_s, self.run_s), min(span.until_s, self.done_s)) for span in self.node_spans())
        return sum(share * max(0.0, until_s - from_s) for share, from_s, until_s in spans)


@dataclass(frozen=True)
class StateOffloaded(_OfJob):
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
        sharing_jobs: Ids of the jobs that held one of the nodes at the time.
        asked_s: Time at which the job asked for a permit, or None for a sync without one.
    """

    job_id: str
    profile: bool
    iteration: int
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    sharing_jobs: Annotated[tuple[str, ...], Field(alias="beside")]
    asked_s: float | None = None


@dataclass(frozen=True)
class IterationSlice(_Lasted):
    """A completed iteration: rollout, training and sync.

    Attributes:
        job_id: Id of the job.
        number: Number of the iteration, from 0.
        start_s: Time at which its rollout was ready for a permit. If rollouts run ahead, not before the end of the iteration
            before.
        end_s: End of its sync.
        metrics: Figures that the job reported, by name. The built-in job has `reward`, `loss`, `sampled_version`,
            `trained_version`, and more.
        interrupted: Whether it waited for space on a disk or continued in another service, so that its length is not
            representative.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float
    metrics: dict[str, float]
    interrupted: bool = False


@dataclass(frozen=True)
class SoloIterationSlice(_Lasted):
    """An iteration that a job did after its last one, alone on the machine. It counts for nothing else.

    Attributes:
        job_id: Id of the job.
        number: Number, continuing after the last iteration.
        start_s: Start, as in `IterationSlice`.
        end_s: End, as in `IterationSlice`.
    """

    job_id: str
    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class JobCheckpointed(_OfJob):
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
class CheckpointDelayed(_OfJob):
    """A job waits for disk space for its checkpoint. Until it is ready for a rollout it takes no part in the turns of its group.

    Attributes:
        why: Error of the system, one line.
    """

    why: str


@dataclass(frozen=True)
class JobRestarted(_OfJob):
    """A job is created again after its processes have ended, and continues from its last checkpoint or from the beginning.

    Attributes:
        iteration: Number of the iteration with which it continues. Recorded iterations from this number on are repeated.
        why: Reason, one line.
    """

    iteration: int
    why: str


@dataclass(frozen=True)
class JobFailed(_OfJob):
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
class DrainPlanned(_Timed):
    """The drain of a node was planned. Without start and deadline, its plan was cancelled.

    Attributes:
        node: Name of the node.
        starts_s: Latest time at which the drain begins, in seconds since 1970, or None.
        deadline_s: Time by which jobs are to have left the node, in seconds since 1970, or None.
    """

    node: str
    starts_s: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class RunEnded(_Timed):
    """The last fact of a run that was not killed. A stopped run may be resumed after it.

    Attributes:
        outcome: `done` (even if some jobs have failed), `stopped` by the user, or `rolled over`, if the next part of the journal
            follows.
    """

    outcome: Literal["done", "stopped", "rolled over"]


@dataclass(frozen=True)
class SavedTurns:
    """The progress of an owner, with the fields of `rollmux_protocol.Turns.saved`.

    Attributes:
        done: Number of iterations that count.
        begins: Number of the owner's first iteration.
        first: Number of the first iteration that is not over.
        syncs: Number of the last iteration whose sync is over, plus 1.
        rollouts: Number of rollouts that are over.
        trainings: Number of trainings that are over.
        start: State of what comes before the first iteration.
        evaluation: State of the evaluations.
        states: State of each iteration from `first` on, as far as it is not due.
        last: Last released phase of each name.
        open: Phases that the owner has asked for and not released, by name.
        granted: Names of the open phases that have been granted.
    """

    done: int
    begins: int
    first: int
    syncs: int
    rollouts: int
    trainings: int
    start: str
    evaluation: str
    states: dict[int, str]
    last: dict[PhaseName, Turn]
    open: dict[PhaseName, Turn]
    granted: frozenset[PhaseName]


@dataclass(frozen=True)
class JobCarried(_OfJob):
    """The progress of a job at the end of the part before this one. Nothing else of that part is known about the job.

    Attributes:
        iterations: Number of iterations that count. In a `RunRecord` without those that the job has done again since.
        most: Largest number of iterations that the job has ever done.
        metrics: Metrics of the last of them.
        checkpoints: Numbers of iterations of the last checkpoints, ascending.
        checkpoint_s: Seconds of writing the last of them.
        turns: Progress of the owner that had the last lease, or None if there was no lease.
        warm: Phases that this owner has run before.
        began_s: Times at which the rollouts of the owner's iterations that are not over were ready, by number of the iteration.
        reported: Metrics of these iterations so far, by number of the iteration.
        busy_s: Node-seconds of the owner's phases since the last progress in the cluster's state, by pool.
        last_held: Names of the nodes that no other job has held since this one, ascending.
    """

    iterations: int
    most: int
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    turns: SavedTurns | None = None
    warm: frozenset[str] = frozenset()
    began_s: dict[int, float] = field(default_factory=dict)
    reported: dict[int, dict[str, float]] = field(default_factory=dict)
    busy_s: dict[Pool, float] = field(default_factory=dict)
    last_held: tuple[str, ...] = ()
    checkpoint_s: float = 0.0


@dataclass(frozen=True)
class PartBegun(_Timed):
    """The journal continues in this part, while jobs are present. Everything that a recovery reads of the last part precedes this.

    Attributes:
        rules: Number of the rules by which facts of the part before this one were selected, `runtime.journal.carry.RULES`.
    """

    rules: int = 1


@dataclass(frozen=True)
class SharingBound:
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


class OwnerProcess(NamedTuple):
    """A process of an owner.

    Attributes:
        pid: Process id.
        started: Time at which it was started, in clock ticks since the machine was booted, or 0 if it cannot be seen from here.
    """

    pid: int
    started: int


@dataclass(frozen=True)
class OwnerAttached(_OfJob):
    """An owner has a lease of its job's placement. Repeated with the same lease when its processes have changed.

    Attributes:
        lease: Id of the lease.
        host: Name of the owner's machine, as the owner states it.
        boot: Scope of the process ids, as returned by `rollmux_processes.pid_space`, if the service shares it; otherwise empty.
        processes: Processes that the owner has named.
        nodes: Names of the nodes of the placement.
    """

    lease: str
    host: str
    boot: str
    processes: tuple[OwnerProcess, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class JobRolledBack(_OfJob):
    """The owner of a job continues from a checkpoint older than the counted iterations. The later iterations are done again.

    Attributes:
        lease: Id of the owner's lease.
        iteration: First iteration that is done again. Recorded iterations from this number on are repeated.
    """

    lease: str
    iteration: int


@dataclass(frozen=True)
class MemoryExceeded(_OfJob):
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
class PhaseGranted(_OfJob):
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
class MetricsReported(_OfJob):
    """The owner of a job has reported metrics of an iteration that is not over. They are part of its `IterationSlice` later.

    Attributes:
        lease: Id of the owner's lease.
        iteration: Number of the iteration.
        metrics: All metrics of the iteration so far, by name.
    """

    lease: str
    iteration: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class LeaseEnded(_OfJob):
    """A lease has ended.

    Attributes:
        lease: Id of the lease.
        done: Whether its owner has reported the job as complete.
        why: Reason, one line.
        lost: Whether the lease was lost, so that its owner has to end at once.
    """

    lease: str
    done: bool
    why: str
    lost: bool = False


@dataclass(frozen=True)
class NodesSuspected(_OfJob):
    """Nodes that a lease held when it was lost. No job gets them until it is known that the owner does not use them.

    Attributes:
        lease: Id of the lease.
        nodes: Names of the nodes.
    """

    lease: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodesFreed(_OfJob):
    """The owner of a lost lease does not use some of its nodes any more.

    Attributes:
        lease: Id of the lease.
        nodes: Names of the nodes.
        why: Evidence for it, one line.
    """

    lease: str
    nodes: tuple[str, ...]
    why: str


Fact = _Timed | _Lasted | SharingBound | Assigned | Returned | Event
