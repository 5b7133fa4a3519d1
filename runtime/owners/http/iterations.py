"""The iterations of attached jobs: what their owners say of them is told to the run as it is of any owner."""

from __future__ import annotations

from rollmux_client import Turn

from rollmux_env.errors import Conflict, Stopping
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.ends import interrupted_slices, left
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiling import Profiling
from runtime.coordinator.run_state import Follows
from runtime.coordinator.slices import slice_of
from runtime.jobside.job_log import iteration_line
from runtime.jobside.messages import Done, End, Report
from runtime.journal.facts import Exceeded, Iteration, LeaseEnded, TakenBack
from runtime.machines.nodes import POOLS
from runtime.owners.boundary import carry_out
from runtime.owners.http.ledger import Lease, Ledger
from runtime.owners.protocol import Next, asked, iterated, next_of, released, released_init, released_sync, synced


class Iterations:
    """Tells the scheduler and the journal what owners do, and ends their leases when they say so, or the job or the run ends.

    Args:
        ledger: of the leases. profiling: of the run's jobs.
    """

    def __init__(self, ledger: Ledger, profiling: Profiling) -> None:
        self.ledger, self.profiling = ledger, profiling
        self._run = ledger.run

    def ask(self, lease: Lease, turn: Turn) -> None:
        """An owner wants a permit, and is in for it unless its budget is spent.

        Raises:
            OutOfOrder: that phase cannot be the next one.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check(turn)
        may_end = turns.may_end(turn)
        if turns.is_next(turn):
            self.iterated(lease)
        if may_end and self._is_over_budget(handle):
            return
        turns.ask(turn)
        handle.permits.wait_for(turn.phase)
        run.follow(asked(handle, turn.phase, turn.iteration, run.log.now(), extra=turn.extra))

    def keeps(self, lease: Lease, phase: HoldName, device_gb: float) -> None:
        """A job keeps so much GPU memory between its phases; if that is more than it may, it is alone from now on."""
        handle = lease.handle
        if phase == "sync" or handle.residency.exceeds:
            return
        shared = handle.place.pool_of("rollout") == "training"  # what it keeps of both phases is on the same devices
        stated = [getattr(handle.spec, pool).device_gb for pool in (POOLS if shared or phase == "init" else (phase,))]
        if None in stated or device_gb <= (stated_gb := sum(stated) if shared else max(stated)):
            return
        note = Exceeded(self._run.log.now(), handle.id, phase, device_gb, stated_gb)
        handle.residency.exceed(note.why)
        self._run.follow(Follows((facts.Alone(handle.id),), (note,), (f"{handle.id}: WARNING: {note.why}",)))

    def finish(self, lease: Lease, phase: HoldName) -> None:
        """A phase is over, and its nodes are free.

        Raises:
            Stopping: as `_check_goes_on`.
        """
        handle, turn, now_s = lease.handle, lease.turns.open[phase], self._run.log.now()
        _check_goes_on(phase in handle.permits.holds)
        start_s, cold = handle.permits.holds[phase].start_s, phase not in lease.warm
        if handle.is_guest and not turn.extra:
            handle.profile.took(phase, now_s - start_s)
        lease.turns.release(phase)
        lease.warm |= {*POOLS} if phase == "init" else {phase}
        handle.permits.wait_no_more(phase)
        if phase == "init":
            self._run.follow(released_init(handle, now_s))
        elif phase == "sync":
            self._run.follow(released_sync(handle, now_s, cold, turn.iteration < lease.turns.begins))
        else:
            report = Report(phase, False, start_s, start_s, now_s, cold=cold)
            self._run.follow(released(handle, report, slice_of(handle, report, now_s, extra=turn.extra)))
        if phase == "training" and not handle.spec.reports_sync:
            self.iterated(lease)

    def synced(self, lease: Lease, number: int, seconds: float) -> None:
        """The new weights of an iteration are on the rollout nodes.

        Raises:
            OutOfOrder: its training is not over, or that of the next one is. Stopping: as `_check_goes_on`.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check_synced(number)
        _check_goes_on(run.present(handle) or not run.stopping)
        if "sync" in turns.granted:
            self.finish(lease, "sync")
        if turns.synced(number):
            now_s = run.log.now()
            if handle.is_guest:
                handle.profile.took("sync", seconds)
            run.follow(synced(handle, number, max(0.0, now_s - seconds), now_s, run.capacity.beside(handle)))
        if turns.trainings > handle.iteration:
            self.iterated(lease)

    def iterated(self, lease: Lease) -> None:
        """The iteration in hand is over: it counts, unless the job has come to its end meanwhile."""
        run, handle = self._run, lease.handle
        if _is_over(handle):
            return
        done = Done(lease.metrics.pop(handle.iteration, {}), movable=handle.spec.movable)
        asked_for = None if handle.job is None else run.scheduler.state.job(handle.id).iterations
        follows = iterated(handle, done, run.log.now(), asked_for)
        over = next(note for note in follows.notes if isinstance(note, Iteration))
        line = iteration_line(handle.iteration, handle.spec.iterations, over.end_s - over.start_s, done.metrics)
        run.log.tell_of(handle.id, line)
        run.follow(follows)
        lease.turns.done = handle.iteration
        handle.changed.ring()
        moves = handle.is_moving or run.scheduler.is_to_go(handle.id)
        if handle.job is None:
            moves = self.profiling.iterated(handle)
        lease.go("move" if moves else "stay")

    def take_back(self, lease: Lease, number: int) -> None:
        """Let the owner of a lease continue after fewer iterations than are counted; the others are done again.

        Args:
            lease: Lease whose owner has finished no phase of an iteration yet.
            number: Number of iterations that the owner has.

        Raises:
            Conflict: It has finished a phase, or holds one; one line.
        """
        run, handle, counted = self._run, lease.handle, lease.handle.iteration
        if number >= counted:
            return
        if not lease.turns.is_fresh:
            raise Conflict(f"job {handle.id}: its owner has begun iteration {lease.turns.begins}; attach again to go back")
        handle.counts.go_back(number)
        lease.turns.go_back(number)
        line = f"its owner goes back from iteration {counted} to {number}: those behind that are done again"
        run.log.write(TakenBack(run.log.now(), handle.id, lease.id, number))
        run.log.say(f"{handle.id}: {line}")
        run.log.tell_of(handle.id, line)

    def leave(self, lease: Lease, why: str) -> None:
        """An owner uses nothing any more; it may attach again, and goes on behind the last whole iteration.

        Whether the job is over is for its owner to say: it may have failed after the last iteration, or go back.
        """
        handle, run = lease.handle, self._run
        what = next_of(handle, False, run.scheduler.is_to_go(handle.id))
        if what is Next.DONE or (what is Next.MOVE and not (lease.moves and run.present(handle))):
            what = Next.GO_ON
        if what is Next.GO_ON and lease.is_awaited and run.present(handle):
            self._end_to_go(lease, why)
        elif what is Next.GO_ON or lease.turns.open:  # it has left in the middle, as far as anybody knows
            self.ledger.end(lease, why, End("died", "step", why))
        else:
            self._carry_out(lease, what, why)

    def done(self, lease: Lease) -> None:
        """The job is over, as its owner says; the iteration in hand counts if only its sync is missing.

        Raises:
            Stopping: as `_check_goes_on`.
        """
        handle, run = lease.handle, self._run
        if _is_over(handle):
            self.ledger.end(lease, "its owner has ended", None)
            lease.stay.free.set()
            return
        _check_goes_on(run.present(handle) or not run.stopping)
        if lease.turns.trainings > handle.iteration:
            self.iterated(lease)
        whole = handle.iteration == handle.spec.iterations
        for phase in [*handle.permits.holds] if whole else ():
            if phase in lease.turns.open:
                self.finish(lease, phase)
        run.log.write(*interrupted_slices(run, handle))  # before the end of the job, behind which it has no phases
        self.ledger.end(lease, "its owner says that the job is done", End("done"), done=True)
        run.follow(left(handle))

    def done_late(self, lease: Lease) -> None:
        """End the job of a lease that was over before its owner could say that the job is done, unless it has another owner since.

        Raises:
            Stopping: as `_check_goes_on`.
        """
        run = self._run
        handle = run.handles[lease.handle.id]
        if handle.gone or _is_over(handle) or self.ledger.last_of(handle.id) is not lease:
            return
        _check_goes_on(not run.stopping)
        why = "its owner says that the job is done"
        note, is_ending = LeaseEnded(run.log.now(), handle.id, lease.id, True, why), handle.ending.why is not None
        run.log.say(f"{handle.id}: done after {handle.iteration} iterations")
        handle.begin_end(End("done"))
        run.follow(Follows(() if is_ending else (facts.Failed(handle.id),), (note,)))

    def end_spent(self, lease: Lease) -> None:
        """End a job that is between two iterations and whose budget is spent."""
        handle = lease.handle
        if not lease.turns.is_between or lease.ended or _is_over(handle) or not self._run.present(handle):
            return
        if self._is_over_budget(handle):
            self._carry_out(lease, Next.OVER_BUDGET, "its budget is spent")

    def _is_over_budget(self, handle: JobHandle) -> bool:
        """Return whether a job's budget is spent, and it has iterations left, which it may not do."""
        state, now_s = self._run.scheduler.state, self._run.log.now()
        spent = state.is_running(handle.id) and state.charges.is_spent(state.row(handle.id), now_s)
        return next_of(handle, spent, False) is Next.OVER_BUDGET

    def _carry_out(self, lease: Lease, what: Next, why: str) -> None:
        """A job leaves its place between two iterations. One that moves keeps what it has here until its owner attaches there."""
        if what is Next.MOVE:
            self._end_to_go(lease, why)
        else:
            self.ledger.end(lease, why, End("stopped"))
        carry_out(self._run, lease.handle, what, Follows())

    def _end_to_go(self, lease: Lease, why: str) -> None:
        """A lease is over, and its job has another place, which it keeps until its owner attaches there."""
        self.ledger.end(lease, why, None)
        lease.stay.since_s = self._run.log.now()


def _check_goes_on(is_here: bool) -> None:
    """Raises Stopping, one line: the run stops, and the job has given up its place already, for the next coordinator."""
    if not is_here:
        raise Stopping("the service is stopping; the next one is to be told")


def _is_over(handle: JobHandle) -> bool:
    """Whether a job was cancelled or has failed, and only its owner has not ended yet."""
    return handle.ending.why is not None and not handle.ending.again
