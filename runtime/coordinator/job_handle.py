"""A job in the coordinator of a run: its state, and records that only their own methods and this module change."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmux_env.keys.job import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_records import PROFILE, Actors, Bell, Counts, Ending, Place, ProfilePass, Residency, Saved, Tail
from runtime.coordinator.job_state import JobLife, JobState
from runtime.coordinator.permits import Permits
from runtime.jobs.spec import JobSpec, OwnersJob
from runtime.jobside.messages import End, Order


@dataclass(eq=False)
class JobHandle:
    """A job in the coordinator. Its methods record what has happened to the job.

    Attributes:
        spec: The job as it was submitted.
        job: The job as the policy sees it, or None until it is profiled.
        life: State of the job, which follows a table.
        changed: Bell that rings when its place, its lease, a phase or the parts of its nodes change.
        place: Place of the job.
        counts: Iterations of the job.
        permits: Permits of the job.
        tail: Progress of its rollout, and the parts of nodes that this uses.
        profile: Measurements for its profile.
        saved: Checkpoints of the job.
        ending: End of its processes, if they are being ended.
        actors: Processes of the job.
        residency: State that it leaves on its nodes between phases.
    """

    spec: JobSpec
    job: Job | None = None
    life: JobLife = field(default_factory=JobLife)
    changed: Bell = field(default_factory=Bell)
    place: Place = field(default_factory=Place)
    counts: Counts = field(default_factory=Counts)
    permits: Permits = field(default_factory=Permits)
    tail: Tail = field(default_factory=Tail)
    profile: ProfilePass = field(default_factory=ProfilePass)
    saved: Saved = field(default_factory=Saved)
    ending: Ending = field(default_factory=Ending)
    actors: Actors = field(default_factory=Actors)
    residency: Residency = field(default_factory=Residency)

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.life.state

    @property
    def gone(self) -> bool:
        """Whether the job has ended, or another handle has replaced this one."""
        return self.state is JobState.GONE

    @property
    def iteration(self) -> int:
        """The number of the iteration in progress, or of the next one."""
        return self.counts.iteration

    @property
    def is_moving(self) -> bool:
        """Whether the job must leave its place for another one."""
        return self.state is JobState.MOVING

    @property
    def is_guest(self) -> bool:
        """Whether the job has a place in which it is profiled."""
        return self.place.group is not None and (self.iteration == PROFILE or self.job is None)

    @property
    def is_over(self) -> bool:
        """Whether the job has done its last iteration. Later ones, alone, do not count (`SoloIterations`)."""
        return self.spec.has_done(self.iteration)

    @property
    def lives(self) -> bool:
        """Whether the job has not ended and is not being ended."""
        return self.state not in (JobState.ENDING, JobState.GONE)

    @property
    def is_at_rest(self) -> bool:
        """Whether the job has no processes, not even ones that are being ended."""
        return self.actors.controller is None and self.ending.why is None

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
        self.place.take(seating, shape)
        self.permits.unpause()
        self.changed.ring()

    def begin_move(self) -> None:
        """Record that the job must move to another place."""
        self.life.follow("moves")

    def leave_place(self) -> None:
        """Record that the job has no place."""
        self.place.give_up()
        self.permits.give_up()
        self.life.follow("left")
        self.changed.ring()

    def begin_rest(self, now_s: float, error: Exception) -> None:
        """Let the job's processes end until it has a place.

        Args:
            now_s: Present time, in seconds of the run.
            error: Error that they get where they wait.
        """
        self.life.follow("rests")
        self.permits.work(now_s)
        self.refuse(error)

    def end_rest(self) -> None:
        """Record that the processes of a waiting job have ended. It may have got a place meanwhile."""
        self.life.follow("rested")
        self.actors.end()
        self.permits.work(None)

    def begin_end(self, why: End, again: bool = False) -> None:
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
            counts=Counts(begins, begins, self.counts.done, self.counts.recent),
            place=Place(parks=self.place.parks or (isinstance(self.spec, OwnersJob) and begins == self.spec.iterations)),
            saved=Saved(self.saved.last, self.saved.recorded),
            ending=Ending(deaths=deaths, restarted=why),
            actors=Actors(warnings=self.actors.warnings),
            residency=Residency(self.residency.waits, exceeds=self.residency.exceeds),
        )

    def give_back(self, phase: HoldName, node_s: float = 0.0) -> None:
        """Record that a phase is over, which counts with `node_s` node-seconds."""
        self.permits.give_back(phase, self.place.pool_of(phase), node_s)
        self.changed.ring()

    def learn(self, job: Job | None) -> None:
        """Record the job as the policy sees it."""
        self.job = job

    def tell(self, order: Order | None, now_s: float) -> None:
        """Send an order to the job, or None if the job is done."""
        self.actors.tell(order)
        self.permits.work(now_s)

    def order(self, checkpoints: str) -> Order:
        """Return the order for the next iteration, or for a checkpoint if the job is leaving its place.

        Args:
            checkpoints: Folder of the job's checkpoints.
        """
        return Order(self.iteration, self.iteration == PROFILE, self.place.nodes, checkpoints, self.saved.last, self.place.leaving)

    def refuse(self, error: Exception) -> None:
        """Wake the job with an error wherever it waits."""
        for waits in (*self.permits.waits.values(), self.actors.order):
            if waits is not None and not waits.done():
                waits.set_exception(error)
