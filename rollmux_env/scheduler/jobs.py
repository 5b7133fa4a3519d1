"""Receiver of the facts of jobs: arrivals, departures, progress and measurements, until the scheduler decides."""

from __future__ import annotations

from rollmux_env.cluster.events import Begun, JobProgress, Reprofiled
from rollmux_env.errors import InvariantError
from rollmux_env.keys.job import Job
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.commands import Command, Evict
from rollmux_env.scheduler.facts import MonthStarted, PhaseOfShape, Queued, QuotaChanged
from rollmux_env.scheduler.guests import Guests
from rollmux_env.scheduler.members import Members
from rollmux_env.scheduler.planner import JobChanges, Planner, Restrictions
from rollmux_env.scheduler.review import Review, job_keeping, job_starting
from rollmux_env.scheduler.seats import nodes_of
from rollmux_env.scheduler.settling import Settling
from rollmux_env.scheduler.ticks import INSTANT_S
from rollmux_env.scheduler.view import HoldName


class JobFacts:
    """Facts of jobs. Each method receives the fact of its name.

    Args:
        planner: Planner whose state learns new measurements at once, and everything else at the next decision.
        members: Members of groups.
        guests: Jobs that are profiled.
        settling: Named nodes, or None.
        restrictions: Restrictions of the jobs' places.
        review: Observer of the jobs' speed, or None.

    Attributes:
        changes: Facts that the state does not have yet.
        commands: Commands to be given before those of the next decision.
    """

    def __init__(
        self,
        planner: Planner,
        members: Members,
        guests: Guests,
        settling: Settling | None,
        restrictions: Restrictions,
        review: Review | None,
    ) -> None:
        self.changes = JobChanges()
        self.commands: list[Command] = []
        self._planner = planner
        self._state = planner.state
        self._members = members
        self._guests = guests
        self._settling = settling
        self._restrictions = restrictions
        self._review = review

    # Arrivals.

    def arrived(self, job: Job, again: bool = False, node_names_with_processes: frozenset[str] = frozenset()) -> None:
        """Queue a job's arrival for the next decision.

        Args:
            job: Job that arrives.
            again: Whether it had to give up its place; it then precedes the other jobs of its priority and key in the queue.
            node_names_with_processes: Names of the nodes on which the job's processes hold its state, or empty if it has none.

        Raises:
            InvariantError: If the job of a run waits in the queue already.
        """
        if self._settling is not None and job.id in self._state.waiting:
            raise InvariantError(f"job {job.id} arrives a second time")
        self.changes.arriving.append(Queued(job, again, node_names_with_processes))

    def confined(self, job_id: str, names: frozenset[str]) -> None:
        """Restrict a job to some nodes.

        Args:
            job_id: Identifier of the job.
            names: Names of the only nodes that the job may get.
        """
        self._restrictions.confined[job_id] = names
        self._planner.wake()

    def estimated(self, job_id: str, phases: frozenset[PhaseOfShape]) -> None:
        """Mark worst cases of a job as estimates.

        Args:
            job_id: Identifier of the job.
            phases: Estimated phases, by number of the shape and name.
        """
        if self._review is not None:
            self._review.estimates.add(job_id, phases)

    def profiled(self, job_id: str) -> None:
        """Remove a guest that has been profiled."""
        if self._members.remove(job_id) is None:
            raise ValueError(f"job {job_id} is not being profiled")
        self._guests.remove(job_id)

    def resumed(self, job_id: str) -> None:
        """Queue the end of a job's pause for the next decision."""
        if job_id not in self.changes.resumed:  # a departure at the same instant may have added it already
            self.changes.resumed.append(job_id)

    def quota_changed(self, user: str, quota: Quota | None) -> None:
        """Queue the change of a user's quota for the next decision.

        Args:
            user: Name of the user.
            quota: New quota, or None if the user has no quota from now on.
        """
        self.changes.limits.append(QuotaChanged(user, quota))

    def month_started(self, month: str) -> None:
        """Queue the beginning of a calendar month for the next decision.

        Args:
            month: Year and month, such as `2026-12`.
        """
        self.changes.limits.append(MonthStarted(month))

    # Phases and iterations.

    def finished(
        self,
        job_id: str,
        phase: HoldName,
        seconds: float,
        cold: bool = False,
        counts: bool = True,
        device_gb: float = 0.0,
        cold_s: float | None = None,
    ) -> None:
        """Release the nodes of a finished phase, and record its measurements.

        Args:
            job_id: Identifier of the job.
            phase: Name of the phase that has run.
            seconds: Duration of the phase, in seconds.
            cold: Whether the phase began with a cold start. Its duration then says nothing about the job's speed.
            counts: Whether the phase belongs to an iteration; False for an additional rollout.
            device_gb: Memory that the job keeps on each GPU of a node until its next phase there, in GB; 0 if it was not measured.
            cold_s: Measured duration of the cold start in seconds, or None to keep the known one.
        """
        self._members.finished(job_id, phase, seconds, counts)
        if self._members.seats[job_id].guest or phase == "sync":
            return
        if phase == "init":
            self._record_init(job_id, seconds)
            return
        if self._review is not None and counts:
            self._review.pace(job_id).phase(phase, seconds, cold)
        if device_gb and (known := job_keeping(self._state, job_id, phase, device_gb)) is not None:
            self._replace_job(known)
        if cold_s is not None:
            self._replace_job(job_starting(self._state.job(job_id), phase, cold_s))

    def synced(self, job_id: str, seconds: float) -> None:
        """Record the duration of a sync.

        Args:
            job_id: Identifier of the job.
            seconds: Duration of the sync, in seconds.
        """
        if self._review is not None and not self._members.seats[job_id].guest:
            self._review.pace(job_id).phase("sync", seconds, False)

    def iterated(self, progress: JobProgress, seconds: float | None = None, movable: bool = True) -> None:
        """Record a job's progress and the duration of its iteration.

        Args:
            progress: Progress of the job after the iteration.
            seconds: Duration of the iteration, in seconds, or None if it is not known.
            movable: Whether the job can be moved to other nodes.
        """
        self.changes.progress[progress.job_id] = progress
        if not movable:
            self._forbid_moves(progress.job_id)
        if self._review is not None and seconds is not None:
            self._review.iterated(progress.job_id, seconds)

    def vacated(self, job_id: str, progress: JobProgress | None = None) -> None:
        """Let a moving job take its new place.

        Args:
            job_id: Identifier of the job, which has left its old place.
            progress: Progress of the job when it left, or None if it has not changed.

        Raises:
            ValueError: If the job has not been moved.
        """
        if not self._members.seats[job_id].moving:
            raise ValueError(f"job {job_id} has not been moved")
        if progress is not None:
            self.changes.progress[job_id] = progress
        if self._review is not None:
            self._review.forget(job_id)
        self._members.vacate(job_id)

    # Departures and failures.

    def left(self, job_id: str, over_budget: bool = False) -> None:
        """Remove a job from its group, and queue its departure for the next decision.

        Args:
            job_id: Identifier of the job.
            over_budget: Whether the job departs because its budget is exhausted.
        """
        self._members.leave(job_id)
        self._depart(job_id, over_budget)

    def yielded(self, job_id: str) -> None:
        """Remove a job from its group, and queue its wait for another place for the next decision."""
        self._members.leave(job_id)
        self.changes.parked.append(job_id)
        if self._review is not None:
            self._review.forget(job_id)

    def end_stays(self, now_s: float) -> None:
        """Let jobs depart that have finished their stay or exhausted their budget by now, as in the fluid replay.

        Their progress is one iteration per period until something changes.
        """
        done = self._state.tables.departing(now_s + INSTANT_S)
        for job_id in done:
            self.left(job_id)
        for job_id in self._state.charges.spent(now_s + INSTANT_S):
            if job_id not in done:
                self.left(job_id, over_budget=True)

    def failed(self, job_id: str) -> None:
        """Evict a job that has failed, and withdraw it from the queue or its requests for permits."""
        self.commands.append(Evict(job_id))
        if job_id in self._state.waiting:
            self.changes.withdrawn.append(job_id)
        seat = self._members.seats.get(job_id)
        if seat is None:
            self._guests.remove(job_id)
        else:
            self._members.fail(seat)

    def lost(self, names: frozenset[str]) -> None:
        """Mark nodes as missing, and fail the jobs on them.

        Args:
            names: Names of the nodes.
        """
        settling = self._settling
        assert settling is not None
        settling.nodes.missing |= names
        for job_id, seat in self._members.seats.items():
            if nodes_of(seat, self._state, settling.nodes) & names:
                settling.uncleared.add(job_id)
                if not seat.failed:
                    self.failed(job_id)

    def cleared(self, job_id: str, progress: JobProgress | None = None) -> None:
        """Remove a job whose processes have ended, and queue its departure for the next decision.

        Args:
            job_id: Identifier of the job.
            progress: Last progress of the job, or None if it has not changed.
        """
        if self._settling is not None:
            self._settling.uncleared.discard(job_id)
        seat = self._members.remove(job_id)
        if seat is None:
            return
        if progress is not None:
            self.changes.progress[job_id] = progress
        if seat.guest:
            self._guests.remove(job_id)
        else:
            self._depart(job_id)

    def halted(self, job_id: str) -> None:
        """Remove a job whose processes have ended because the run stops."""
        if self._members.remove(job_id) is not None:
            self._guests.remove(job_id)

    def _depart(self, job_id: str, over_budget: bool = False) -> None:
        """Queue the departure of a job from its place."""
        if self._state.is_paused(job_id):
            self.resumed(job_id)
        self.changes.departed[job_id] = over_budget
        if self._review is not None:
            self._review.forget(job_id)
            self._review.estimates.forget(job_id)

    def _record_init(self, job_id: str, seconds: float) -> None:
        """Record the end of a job's init as its cold start. If the job has done no iteration, its SLO counts from now on."""
        if not self._state.iterations_done(job_id):
            self._planner.note(Begun(self._members.now_s, job_id))
        job = self._state.job(job_id)
        if seconds > sum(phase.switch.cold_s for phase in job.phases(0)):
            self._replace_job(job_starting(job_starting(job, "rollout", seconds / 2), "training", seconds / 2))

    def _forbid_moves(self, job_id: str) -> None:
        """Mark a job as not movable. If it is already moving, it fails and begins again."""
        job = self._state.job(job_id)
        if job.movable:
            self._replace_job(job.model_copy(update={"movable": False}))
        if self._members.seats[job_id].moving:
            self.failed(job_id)

    def _replace_job(self, job: Job) -> None:
        """Replace a job by one with new figures."""
        self._state.now_s = self._members.now_s
        self._planner.note(Reprofiled(self._members.now_s, job))
