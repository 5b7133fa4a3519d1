"""The iterations of attached jobs: what their owners say of them is told to the run as it is of any owner."""

from __future__ import annotations

from rollmux_client import Turn

from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.execution.job_log import iteration_line, tell_of
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import Done, Report
from runtime.execution.run_state import Follows, RunState
from runtime.journal.facts import Exceeded, Granted, Iteration
from runtime.owners.http.lease import Lease
from runtime.owners.http.measuring import measure, measured
from runtime.owners.protocol import asked, iterated, released, released_sync, synced

_OWN = "owner"  # who counts an attached job's progress


class Iterations:
    """Tells the scheduler and the journal what owners do.

    Args:
        run: whose jobs they have. lifecycle: of it.
    """

    def __init__(self, run: RunState, lifecycle: JobLifecycle) -> None:
        self._run = run
        self._lifecycle = lifecycle

    def ask(self, lease: Lease, turn: Turn) -> None:
        """An owner wants a permit, and is in for it unless its budget is spent.

        Raises:
            OutOfOrder: that phase cannot be the next one.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check(turn)
        may_end, state = turns.may_end(turn), run.scheduler.state
        if turns.is_next(turn):
            self.iterated(lease)
        if may_end and state.is_running(handle.id) and state.is_over_budget(handle.id, run.log.now()):
            return
        turns.ask(turn)
        handle.wait_for(turn.phase)
        run.follow(asked(handle, turn.phase, turn.iteration, run.log.now(), extra=turn.extra))

    def grant(self, lease: Lease, phase: HoldName) -> None:
        """The owner is about to be told that it has a permit."""
        hold, turn = lease.handle.permits.holds[phase], lease.turns.open[phase]
        lease.turns.grant(phase)
        job_id, now_s = lease.handle.id, self._run.log.now()
        self._run.log.write(
            Granted(now_s, job_id, lease.id, phase, turn.iteration, turn.extra, hold.asked_s, hold.start_s, hold.switched)
        )

    def progress(self, lease: Lease, done: int, total: int, tokens: int) -> None:
        """How far the phase in hand is."""
        lease.handle.tail.progress[_OWN] = (done, total, tokens)

    def keeps(self, lease: Lease, phase: HoldName, device_gb: float) -> None:
        """A job keeps so much GPU memory between its phases; if that is more than it may, it is alone from now on."""
        handle = lease.handle
        stated_gb = getattr(handle.spec, phase).device_gb if phase != "sync" else None
        if stated_gb is None or device_gb <= stated_gb or handle.residency.exceeds:
            return
        note = Exceeded(self._run.log.now(), handle.id, phase, device_gb, stated_gb)
        handle.residency.exceeds = note.why
        self._run.follow(Follows((facts.Alone(handle.id),), (note,), (f"{handle.id}: WARNING: {note.why}",)))

    def finish(self, lease: Lease, phase: HoldName) -> None:
        """A phase is over, and its nodes are free."""
        handle, turn, now_s = lease.handle, lease.turns.open[phase], self._run.log.now()
        start_s, cold = handle.permits.holds[phase].start_s, phase not in lease.warm
        if not turn.extra:
            measure(handle, phase, now_s - start_s)
        lease.turns.release(phase)
        lease.warm.add(phase)
        handle.permits.waits.pop(phase, None)
        if phase == "sync":
            self._run.follow(released_sync(handle, now_s, cold))
        else:
            report = Report(phase, False, start_s, start_s, now_s, cold=cold)
            self._run.follow(released(handle, report, handle.slice(report, now_s, (), extra=turn.extra)))
        if phase == "training" and not handle.spec.sync_s:
            self.iterated(lease)

    def synced(self, lease: Lease, number: int, seconds: float) -> None:
        """The new weights of an iteration are on the rollout nodes.

        Raises:
            OutOfOrder: its training is not over, or that of the next one is.
        """
        run, handle, turns = self._run, lease.handle, lease.turns
        turns.check_synced(number)
        if "sync" in turns.granted:
            self.finish(lease, "sync")
        if turns.synced(number):
            now_s, names = run.log.now(), [node.name for node in handle.place.nodes["rollout"]]
            beside = tuple(holder for holder in run.nodes.holders(names) if holder != handle.id)
            measure(handle, "sync", seconds)
            run.follow(synced(handle, number, max(0.0, now_s - seconds), now_s, beside))
        if turns.trainings > handle.iteration:
            self.iterated(lease)

    def iterated(self, lease: Lease) -> None:
        """The iteration in hand is over: it counts."""
        run, handle = self._run, lease.handle
        done = Done(lease.metrics.pop(handle.iteration, {}), movable=handle.spec.movable)
        asked_for = None if handle.job is None else run.scheduler.state.job(handle.id).iterations
        follows = iterated(handle, done, run.log.now(), asked_for)
        over = next(note for note in follows.notes if isinstance(note, Iteration))
        line = iteration_line(handle.iteration, handle.spec.iterations, over.end_s - over.start_s, done.metrics)
        tell_of(run.plan.folder, handle.id, line)
        run.follow(follows)
        lease.turns.done = handle.iteration
        handle.changed.ring()
        moves = handle.place.moving or run.scheduler.is_to_go(handle.id)
        if handle.job is None:
            moves = measured(run, self._lifecycle, handle)
        lease.go("move" if moves else "stay")
