"""A job as the coordinator of a run knows it: its state, and records that are written here and in their own methods alone."""

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
    """A job as the coordinator knows it, and its conversation with it. Methods take what has happened.

    Attributes:
        spec: The job as it was submitted.
        job: The job as the policy sees it, or None until it is profiled.
        life: The state of the job, which follows a table.
        changed: Bell that rings when its place, its lease, a phase or the parts of its nodes have changed.
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
        """Whether it has come to its end, or another handle has replaced it."""
        return self.state is JobState.GONE

    @property
    def iteration(self) -> int:
        """The number of the iteration in progress, or of the next one."""
        return self.counts.iteration

    @property
    def is_moving(self) -> bool:
        """Whether it is to leave its place for another one."""
        return self.state is JobState.MOVING

    @property
    def is_guest(self) -> bool:
        """Whether it has a place in which it is profiled."""
        return self.place.group is not None and (self.iteration == PROFILE or self.job is None)

    @property
    def is_over(self) -> bool:
        """Whether it has done its last iteration; what it does since counts for none (`SoloIterations`)."""
        return self.spec.has_done(self.iteration)

    @property
    def lives(self) -> bool:
        """Whether it has not come to its end, and is not about to."""
        return self.state not in (JobState.ENDING, JobState.GONE)

    @property
    def is_at_rest(self) -> bool:
        """Whether it has no processes, and none that are being ended."""
        return self.actors.controller is None and self.ending.why is None

    @property
    def id(self) -> str:
        """The job's."""
        return self.spec.id

    def lend(self, seating: Seating) -> None:
        """Give it nodes on which it is measured."""
        if not (self.spec.is_attached or self.is_over):
            self.counts.begin(PROFILE)
        self._seat(seating, 0)
        self.life.follow("lent")

    def arrive(self) -> None:
        """Hand it to the policy."""
        self.life.follow("arrived")

    def take_place(self, seating: Seating, shape: int = 0) -> None:
        """Give it a place, where it runs in a shape."""
        if self.place.group is None:
            self.counts.begin(self.counts.begins)
        self._seat(seating, shape)
        self.life.follow("placed")

    def _seat(self, seating: Seating, shape: int) -> None:
        self.place.take(seating, shape)
        self.permits.unpause()
        self.changed.ring()

    def begin_move(self) -> None:
        """Let it go to another place."""
        self.life.follow("moves")

    def leave_place(self) -> None:
        """Take its place away."""
        self.place.give_up()
        self.permits.give_up()
        self.life.follow("left")
        self.changed.ring()

    def begin_rest(self, now_s: float, error: Exception) -> None:
        """End its processes until it has a place; they get the error where they wait."""
        self.life.follow("rests")
        self.permits.work(now_s)
        self.refuse(error)

    def end_rest(self) -> None:
        """Note that its processes have ended; it may have got a place meanwhile."""
        self.life.follow("rested")
        self.actors.end()
        self.permits.work(None)

    def begin_end(self, why: End, again: bool = False) -> None:
        """End its processes, and the job with them unless it is made `again`."""
        self.ending.begin(why, again)
        self.life.follow("ends")

    def close(self, halted: bool = False) -> None:
        """Note that it has come to its end, or was replaced; if it is `halted`, it continues with the run."""
        if halted:
            self.ending.halt()
        self.life.follow("gone")

    def successor(self, begins: int, deaths: int, why: str) -> JobHandle:
        """Return the job as it is made again.

        Args:
            begins: Number of the iteration that it begins with.
            deaths: Number of its deaths in a row.
            why: Reason for which it is made again.
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
        """Note that a phase is over, and the node-seconds of it that count."""
        self.permits.give_back(phase, self.place.pool_of(phase), node_s)
        self.changed.ring()

    def learn(self, job: Job | None) -> None:
        """Note how the policy knows it."""
        self.job = job

    def tell(self, order: Order | None, now_s: float) -> None:
        """Answer what it waits for between iterations; None: it is done."""
        self.actors.tell(order)
        self.permits.work(now_s)

    def order(self, checkpoints: str) -> Order:
        """The iteration that it is to do next; or where it is leaving its place, the checkpoint before that.

        Args:
            checkpoints: folder of the job's.
        """
        return Order(self.iteration, self.iteration == PROFILE, self.place.nodes, checkpoints, self.saved.last, self.place.leaving)

    def refuse(self, error: Exception) -> None:
        """Wake it where it waits, with an error."""
        for waits in (*self.permits.waits.values(), self.actors.order):
            if waits is not None and not waits.done():
                waits.set_exception(error)
