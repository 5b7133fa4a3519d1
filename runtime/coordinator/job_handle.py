"""A job in the coordinator of a run: its state, and records that only their own methods change."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmux_env.keys.job import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator import job_records as records
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.job_state import JobLife
from runtime.coordinator.permits import Permits
from runtime.jobs.spec import JobSpec, OwnersJob
from runtime.jobside.messages import IterationOrder, JobEnd


@dataclass(eq=False)
class JobHandle:
    """A job in the coordinator. Its methods record what has happened to the job.

    Attributes:
        spec: The job as it was submitted.
        job: The job as the policy sees it, or None until it is profiled.
        life: State of the job, which follows a table.
        changed: Condition that is notified when its place, its lease, a phase or the parts of its nodes change.
        place: Place of the job.
        counts: Iterations of the job.
        permits: Permits of the job.
        rollout_progress: Progress of its rollout, and the parts of nodes that this uses.
        profile: Measurements for its profile.
        checkpoints: Checkpoints of the job.
        ending: End of its processes, if they are being ended.
        processes: Processes of the job.
        resident_state: State that it leaves on its nodes between phases.
    """

    spec: JobSpec
    job: Job | None = None
    life: JobLife = field(default_factory=JobLife)
    changed: records.BroadcastCondition = field(default_factory=records.BroadcastCondition)
    place: records.JobPlacement = field(default_factory=records.JobPlacement)
    counts: records.IterationCounts = field(default_factory=records.IterationCounts)
    permits: Permits = field(default_factory=Permits)
    rollout_progress: records.RolloutProgress = field(default_factory=records.RolloutProgress)
    profile: records.ProfilePass = field(default_factory=records.ProfilePass)
    checkpoints: records.JobCheckpoints = field(default_factory=records.JobCheckpoints)
    ending: records.JobEnding = field(default_factory=records.JobEnding)
    processes: records.JobProcesses = field(default_factory=records.JobProcesses)
    resident_state: records.ResidentState = field(default_factory=records.ResidentState)

    @property
    def iteration(self) -> int:
        """The number of the iteration in progress, or of the next one."""
        return self.counts.iteration

    @property
    def is_guest(self) -> bool:
        """Whether the job has a place in which it is profiled."""
        return self.place.group is not None and (self.iteration == PROFILE or self.job is None)

    @property
    def is_over(self) -> bool:
        """Whether the job has done its last iteration. Later ones, alone, do not count (`SoloIterations`)."""
        return self.spec.has_done(self.iteration)

    @property
    def is_at_rest(self) -> bool:
        """Whether the job has no processes, not even ones that are being ended."""
        return self.processes.controller is None and self.ending.why is None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    def lend(self, seating: Seating) -> None:
        """Record that the job has nodes on which it is measured."""
        if not (self.spec.is_attached or self.is_over):
            self.counts.begin(PROFILE)
        self._seat(seating, 0)
        self.life.follow("lent")

    def arrive(self) -> None:
        """Record that the job is handed to the policy."""
        self.life.follow("arrived")

    def take_place(self, seating: Seating, shape: int = 0) -> None:
        """Record that the job has a place, where it runs in a shape."""
        if self.place.group is None:
            self.counts.begin(self.counts.begins)
        self._seat(seating, shape)
        self.life.follow("placed")

    def _seat(self, seating: Seating, shape: int) -> None:
        self.place.assign(seating, shape)
        self.permits.resume_rollouts()
        self.changed.notify_all()

    def wait_parked(self, busy_s: dict[str, float]) -> None:
        """Record that the job, which has no processes, waits for another place.

        Args:
            busy_s: Node-seconds of its phases since its arrival, by pool.
        """
        self.permits.reset_busy(busy_s)
        self.life.follow("arrived")
        self.life.follow("parked")

    def leave_place(self) -> None:
        """Record that the job has no place."""
        self.place.clear()
        self.permits.clear()
        self.life.follow("left")
        self.changed.notify_all()

    def begin_rest(self, now_s: float, error: Exception) -> None:
        """Let the job's processes end until it has a place.

        Args:
            now_s: Present time, in seconds of the run.
            error: Error that they get where they wait.
        """
        self.life.follow("rests")
        self.permits.set_busy_since(now_s)
        self.refuse(error)

    def end_rest(self) -> None:
        """Record that the processes of a waiting job have ended. It may have got a place meanwhile."""
        self.life.follow("rested")
        self.processes.end()
        self.permits.set_busy_since(None)

    def begin_end(self, why: JobEnd, again: bool = False) -> None:
        """Let the job's processes end.

        Args:
            why: Reason.
            again: Whether the job is restarted then; otherwise it ends.
        """
        self.ending.begin(why, again)
        self.life.follow("ends")

    def close(self, halted: bool = False) -> None:
        """Record that the job has ended, or that another handle replaces this one.

        Args:
            halted: Whether the job ends with the run, and continues when the run does.
        """
        if halted:
            self.ending.halt()
        self.life.follow("gone")

    def successor(self, begins: int, deaths: int, why: str) -> JobHandle:
        """Return the handle of the restarted job.

        Args:
            begins: Number of the iteration with which it begins.
            deaths: Number of consecutive deaths.
            why: Reason of the restart.
        """
        return JobHandle(
            self.spec,
            self.job,
            changed=self.changed,
            counts=records.IterationCounts(begins, begins, self.counts.done, self.counts.recent),
            place=records.JobPlacement(
                awaits_owner=self.place.awaits_owner or (isinstance(self.spec, OwnersJob) and begins == self.spec.iterations)
            ),
            checkpoints=records.JobCheckpoints(self.checkpoints.last, self.checkpoints.recorded, self.checkpoints.seconds),
            ending=records.JobEnding(deaths=deaths, restarted=why),
            processes=records.JobProcesses(warnings=self.processes.warnings),
            resident_state=records.ResidentState(self.resident_state.levels, excess=self.resident_state.excess),
        )

    def give_back(self, phase: HoldName, node_s: float = 0.0) -> None:
        """Record that a phase is over, which counts with `node_s` node-seconds."""
        self.permits.end_phase(phase, self.place.pool_of(phase), node_s)
        self.changed.notify_all()

    def set_job(self, job: Job | None) -> None:
        """Record the job as the policy sees it."""
        self.job = job

    def send_order(self, order: IterationOrder | None, now_s: float) -> None:
        """Send an order to the job, or None if the job is done."""
        self.processes.send_order(order)
        self.permits.set_busy_since(now_s)

    def make_order(self, checkpoints: str) -> IterationOrder:
        """Return the order for the next iteration, or for a checkpoint if the job is leaving its place.

        Args:
            checkpoints: Folder of the job's checkpoints.
        """
        return IterationOrder(
            self.iteration, self.iteration == PROFILE, self.place.nodes, checkpoints, self.checkpoints.last, self.place.leaving
        )

    def refuse(self, error: Exception) -> None:
        """Wake the job with an error wherever it waits."""
        for waits in (*self.permits.futures.values(), self.processes.order):
            if waits is not None and not waits.done():
                waits.set_exception(error)
