"""Phases and iterations of attached jobs: requests of their owners become facts of the scheduler and the journal."""

from __future__ import annotations

from rollmux_protocol import Turn

from rollmux_env.errors import Conflict, Stopping
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import end_over_budget, interrupted_slices, left
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiling import Profiling
from runtime.coordinator.slices import slice_of
from runtime.jobs.spec import CommandJob
from runtime.jobside.job_log import iteration_line
from runtime.jobside.messages import IterationResult, JobEnd, PhaseReport
from runtime.journal.facts import IterationSlice, JobRolledBack, LeaseEnded, MemoryExceeded
from runtime.machines.nodes import POOLS
from runtime.owners.http.ledger import Lease, Ledger
from runtime.owners.protocol import (
    NextStep,
    asked,
    carried_out,
    iterated,
    next_step_of,
    released,
    released_init,
    released_sync,
    synced,
)

_SAYS_DONE = "its owner says that the job is done"


class Iterations:
    """Reports the progress of attached jobs to the scheduler and the journal, and ends leases when owners leave.

    Args:
        ledger: Leases of the run.
        profiling: Profiles of the run's jobs.
    """

    def __init__(self, ledger: Ledger, profiling: Profiling) -> None:
        self.ledger, self.profiling = ledger, profiling
        self._run = ledger.run

    def ask(self, lease: Lease, turn: Turn) -> None:
        """Record that an owner asks for a phase, unless the job's budget is spent.

        Args:
            lease: Lease of the owner.
            turn: Phase and iteration that are asked for.

        Raises:
            OutOfOrder: If the phase cannot be the next one.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check(turn)
        may_end = turns.may_end(turn)
        if turns.is_next(turn):
            self.iterated(lease)
            if lease.must_move or lease.is_elsewhere or not run.has_seat(handle):  # in the last case it was profiled just now
                return
        if may_end and self._is_over_budget(handle):
            return
        turns.ask(turn, is_checked=True)
        handle.permits.wait_for(turn.phase)
        run.apply(asked(handle, turn.phase, turn.iteration, run.log.now(), extra=turn.extra))

    def check_kept_memory(self, lease: Lease, phase: HoldName, device_gb: float) -> None:
        """Check the GPU memory that a job keeps between its phases. A job that keeps more than it stated runs alone from now on.

        Args:
            lease: Lease of the job.
            phase: Phase after which the memory was measured.
            device_gb: Memory that the job keeps of a node's GPUs, in GB.
        """
        handle = lease.handle
        if phase == "sync" or handle.resident_state.excess:
            return
        shared = handle.place.pool_of("rollout") == "training"  # the state of both phases is on the same devices
        stated = [getattr(handle.spec, pool).device_gb for pool in (POOLS if shared or phase == "init" else (phase,))]
        if None in stated or device_gb <= (stated_gb := sum(stated) if shared else max(stated)):
            return
        note = MemoryExceeded(self._run.log.now(), handle.id, phase, device_gb, stated_gb)
        handle.resident_state.set_excess(note.why)
        self._run.apply(Consequences((facts.Alone(handle.id),), (note,), (f"{handle.id}: WARNING: {note.why}",)))

    def finish(self, lease: Lease, phase: HoldName) -> None:
        """Record that a phase is over and its nodes are free.

        Args:
            lease: Lease that held the phase.
            phase: The phase.

        Raises:
            Stopping: If the run stops and the job has given up its placement.
        """
        handle, turn, now_s = lease.handle, lease.turns.open[phase], self._run.log.now()
        _check_goes_on(phase in handle.permits.holds)
        start_s, cold = handle.permits.holds[phase].start_s, phase not in lease.record.warm
        if handle.is_guest and not turn.extra:
            handle.profile.record_phase(phase, now_s - start_s)
        lease.turns.release(phase)
        lease.record.warm_up(phase)
        handle.permits.wait_no_more(phase)
        if phase == "init":
            self._run.apply(released_init(handle, now_s))
        elif phase == "sync":
            self._run.apply(released_sync(handle, now_s, cold, turn.iteration < lease.turns.begins))
        else:
            report = PhaseReport(phase, False, start_s, start_s, now_s, cold=cold)
            self._run.apply(released(handle, report, slice_of(handle, report, now_s, extra=turn.extra)))
        if phase == "training" and not handle.spec.reports_sync:
            self.iterated(lease)

    def synced(self, lease: Lease, number: int, seconds: float) -> None:
        """Record that the new weights of an iteration are on the rollout nodes.

        The sync is not measured if the job has given up its nodes since the training, because it waits for a place after its last
        measured iteration or the service has been replaced.

        Args:
            lease: Lease of the job.
            number: Number of the iteration.
            seconds: Duration of the sync, in seconds.

        Raises:
            OutOfOrder: If the training of the iteration is not over, or that of the next one is.
            Stopping: If the run stops and the job has given up its placement.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check_synced(number)
        _check_goes_on(run.has_seat(handle) or not run.stopping)
        if "sync" in turns.granted:
            self.finish(lease, "sync")
        has_nodes = run.has_seat(handle) and lease.placement is self.ledger.placement_of(handle)
        if turns.synced(number) and has_nodes:
            now_s = run.log.now()
            if handle.is_guest:
                handle.profile.record_phase("sync", seconds)
            run.apply(synced(handle, number, max(0.0, now_s - seconds), now_s, run.capacity.jobs_sharing_rollout_nodes(handle)))
        if turns.trainings > handle.iteration:
            self.iterated(lease)

    def iterated(self, lease: Lease) -> None:
        """Count the iteration in progress as done, unless the job has been cancelled or has failed."""
        run, handle = self._run, lease.handle
        if _is_over(handle):
            return
        done = IterationResult(lease.record.metrics.get(handle.iteration, {}), movable=handle.spec.movable)
        asked_for = None if handle.job is None else run.scheduler.state.job(handle.id).iterations
        follows = iterated(handle, done, run.log.now(), asked_for)
        over = next(note for note in follows.entries if isinstance(note, IterationSlice))
        line = iteration_line(handle.iteration, handle.spec.iterations, over.end_s - over.start_s, done.metrics)
        run.log.write_job_log(handle.id, line)
        run.apply(follows)
        lease.record.iterate(over.number)
        handle.changed.notify_all()
        if handle.job is not None:
            moves = run.must_leave(handle)
        else:
            names = handle.place.names
            for follows in self.profiling.iterated(handle, run.log.now):
                run.apply(follows)
            moves = run.has_seat(handle) and names != handle.place.names
        lease.apply_event("move" if moves else "stay")

    def take_back(self, lease: Lease, number: int) -> None:
        """Let an owner continue from an earlier iteration. Iterations that were counted beyond it are run again.

        Args:
            lease: Lease whose owner has finished no phase of an iteration yet.
            number: Number of iterations that the owner has.

        Raises:
            Conflict: If the owner holds a phase or has finished one; one line.
        """
        run, handle, counted = self._run, lease.handle, lease.handle.iteration
        if number >= counted:
            return
        if not lease.turns.is_fresh:
            raise Conflict(f"job {handle.id}: its owner has begun iteration {lease.turns.begins}; attach again to go back")
        line = f"its owner goes back from iteration {counted} to {number}: the iterations after that are done again"
        note = JobRolledBack(run.log.now(), handle.id, lease.id, number)
        run.apply(Consequences((), (note,), (f"{handle.id}: {line}",)))
        lease.follow(note)
        handle.counts.go_back(number)
        run.log.write_job_log(handle.id, line)

    def leave(self, lease: Lease, why: str) -> None:
        """End the lease of an owner that detaches. It may attach again, and continues after the last whole iteration.

        A job is done only when its owner reports that. An owner that detaches after the last iteration may have failed, or may go
        back.

        Args:
            lease: The lease.
            why: Reason, for the log and the journal.
        """
        handle, run = lease.handle, self._run
        what = next_step_of(handle, False, run.scheduler.must_vacate(handle.id))
        may_be_parked = what is not NextStep.PARK or (lease.turns.is_between and run.has_seat(handle))
        if what is NextStep.DONE or (what is NextStep.MOVE and not (lease.must_move and run.has_seat(handle))):
            what = NextStep.GO_ON
        if what is NextStep.GO_ON and lease.is_awaited and run.has_seat(handle):
            self._end_to_go(lease, why)
        elif what is NextStep.GO_ON or lease.turns.open or not may_be_parked:  # it may be in the middle of an iteration
            self.ledger.end(lease, why, JobEnd("died", "step", why))
        else:
            self._carry_out(lease, what, why)

    def done(self, lease: Lease) -> None:
        """End the job of an owner that reports it done, or whose command has ended with status 0.

        Args:
            lease: Lease of the owner.

        Raises:
            Stopping: If the run stops and the job has given up its placement.
        """
        handle, run = lease.handle, self._run
        if _is_over(handle):
            self.ledger.end(lease, "its owner has ended", None)
            lease.placement.free.set()
            return
        if lease.placement is not self.ledger.placement_of(handle):  # its lent nodes have gone with the former coordinator
            _check_goes_on(not run.stopping)
            self.ledger.end(lease, _SAYS_DONE, None)
            self.done_late(lease)
            return
        self.count_rest(lease)
        slices = interrupted_slices(run, handle, run.log.now())
        run.log.write(*slices)  # first, because no phase may follow the end of a job in the journal
        self.ledger.end(lease, _SAYS_DONE, JobEnd("done"), done=True)
        run.apply(left(handle))

    def hand_back(self, lease: Lease) -> None:
        """End the lease of a command that reports its job done. The exit status of the command decides later whether it is.

        Phases that it has only asked for are withdrawn, and an unfinished iteration counts for nothing. A phase that it holds keeps
        its nodes until the command has ended.

        Args:
            lease: Lease of the command.

        Raises:
            Stopping: If the run stops and the job has given up its placement.
        """
        handle, run, turns = lease.handle, self._run, lease.turns
        if _is_over(handle):
            self.done(lease)
            return
        self.count_rest(lease)
        for phase in [*turns.open]:
            turns.drop(phase)
        self.ledger.end(lease, _SAYS_DONE, None)
        lease.placement.unclaim(run.log.now())
        if run.has_seat(handle):
            run.apply(Consequences((facts.RequestsWithdrawn(handle.id),)))

    def count_rest(self, lease: Lease) -> None:
        """Count an iteration that lacks only its sync, and end the phases of a job that has all of its iterations."""
        handle, run = lease.handle, self._run
        _check_goes_on(run.has_seat(handle) or not run.stopping)
        if lease.turns.trainings > handle.iteration:
            self.iterated(lease)
        whole = handle.iteration == handle.spec.iterations
        for phase in [*handle.permits.holds] if whole else ():
            if phase in lease.turns.open:
                self.finish(lease, phase)

    def done_late(self, lease: Lease, why: str = _SAYS_DONE) -> None:
        """End the job of an owner that reports it done after its lease was over, unless the job has another owner now.

        Args:
            lease: Lease that is over.
            why: Reason, for the journal.

        Raises:
            Stopping: If the run stops.
        """
        run = self._run
        handle = run.handles[lease.handle.id]
        if handle.life.is_gone or _is_over(handle) or self.ledger.last_of(handle.id) is not lease:
            return
        _check_goes_on(not run.stopping)
        is_ending = handle.ending.why is not None
        note = LeaseEnded(run.log.now(), handle.id, lease.id, True, why, lease.is_lost)
        line = f"{handle.id}: done after {handle.iteration} iterations"
        handle.begin_end(JobEnd("done"))
        run.apply(Consequences(() if is_ending else (facts.Failed(handle.id),), (note,), (line,)))

    def end_spent(self, lease: Lease) -> None:
        """End a job that is between two iterations and whose budget is spent."""
        handle = lease.handle
        if not lease.turns.is_between or lease.is_over or _is_over(handle) or not self._run.has_seat(handle):
            return
        if self._is_over_budget(handle):
            self._carry_out(lease, NextStep.OVER_BUDGET, "its budget is spent")

    def _is_over_budget(self, handle: JobHandle) -> bool:
        """Return whether a job has iterations left that its spent budget does not allow."""
        state, now_s = self._run.scheduler.state, self._run.log.now()
        spent = state.is_running(handle.id) and state.charges.is_spent(state.row(handle.id), now_s)
        return next_step_of(handle, spent, False) is NextStep.OVER_BUDGET

    def _carry_out(self, lease: Lease, what: NextStep, why: str) -> None:
        """End the lease of a job between two iterations, and let the job leave its placement."""
        if what is NextStep.MOVE:
            self._end_to_go(lease, why)
        else:
            self.ledger.end(lease, why, JobEnd("stopped"))
        if what is NextStep.OVER_BUDGET and isinstance(lease.handle.spec, CommandJob):
            self._run.apply(end_over_budget(lease.handle))  # its processes use the nodes until the service has ended them
        else:
            self._run.apply(carried_out(self._run, lease.handle, what, self._run.log.now()))

    def _end_to_go(self, lease: Lease, why: str) -> None:
        """End a lease whose job has another placement, and keep that until the owner attaches there."""
        self.ledger.end(lease, why, None)
        lease.placement.unclaim(self._run.log.now())


def _check_goes_on(is_here: bool) -> None:
    """Check that a report can still be recorded.

    Raises:
        Stopping: If the job has given up its placement for the next coordinator; one line.
    """
    if not is_here:
        raise Stopping("the service is stopping; repeat the request to the next one")


def _is_over(handle: JobHandle) -> bool:
    """Return whether a job was cancelled or has failed, and only its owner has not ended yet."""
    return handle.ending.why is not None and not handle.ending.restarts
