"""How leases end when their owners say so, or when the job or the run does."""

from __future__ import annotations

from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import EVICTED, JobLifecycle
from runtime.execution.messages import End
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.lease import Lease, Stay
from runtime.owners.http.ledger import Ledger, wake
from runtime.owners.protocol import Next, moved, next_of


class Ending:
    """Ends leases.

    Args:
        ledger: of the leases. lifecycle: of the jobs. iterations: what owners have done.
    """

    def __init__(self, ledger: Ledger, lifecycle: JobLifecycle, iterations: Iterations) -> None:
        self._ledger = ledger
        self._run = ledger.run
        self._lifecycle = lifecycle
        self._iterations = iterations

    def leave(self, lease: Lease, why: str) -> None:
        """An owner uses nothing any more; it may attach again, and goes on behind the last whole iteration."""
        handle = lease.handle
        what = next_of(handle, False, self._run.scheduler.is_to_go(handle.id))
        if what is Next.DONE:
            self.done(lease)
        elif what is Next.MAKE_ROOM and not lease.turns.open:
            self._ledger.end(lease, why, End(EVICTED, "step", "its node is drained"))
        elif what is Next.MOVE and lease.moves and not lease.turns.open and self._run.present(handle):
            self._ledger.end(lease, why, None)
            lease.stay.since_s = self._run.log.now()
            self._run.follow(moved(handle))
            handle.changed.ring()
        else:
            self._ledger.end(lease, why, End("died", "step", why))

    def done(self, lease: Lease) -> None:
        """The job is over, as its owner says; the iteration in hand counts if only its sync is missing."""
        handle = lease.handle
        if lease.turns.trainings > handle.iteration:
            self._iterations.iterated(lease)
        whole = handle.iteration == handle.spec.iterations
        for phase in [*handle.permits.holds] if whole else ():
            if phase in lease.turns.open:
                self._iterations.finish(lease, phase)
        notes = self._lifecycle.interrupted_slices(handle)
        self._ledger.end(lease, "its owner says that the job is done", End("done"), done=True)
        self._lifecycle.finish(handle, notes)

    def end_spent(self, lease: Lease) -> None:
        """End a job that is between two iterations and whose budget is spent."""
        handle, state = lease.handle, self._run.scheduler.state
        if not lease.turns.is_between or lease.ended or not self._run.present(handle) or not state.is_running(handle.id):
            return
        if next_of(handle, state.is_over_budget(handle.id, self._run.log.now()), False) is Next.OVER_BUDGET:
            self._ledger.end(lease, "its budget is spent", End("done"))
            self._lifecycle.finish(handle, (), over_budget=True)

    def finish(self, handle: JobHandle, stay: Stay) -> None:
        """A job that has no lease is done."""
        stay.free.set()
        stay.end(End("done"))
        self._lifecycle.finish(handle, ())

    def stopped(self, lease: Lease) -> None:
        """An owner that had to stop has given up what it held."""
        self._ledger.end(lease, "it had to stop", End("stopped"))

    def halt_all(self) -> None:
        """The run stops. Leases stay as they are; nobody is told anything any more."""
        self._ledger.stopped.set()
        for handle in [*self._run.handles.values()]:
            stay = self._ledger.stay(handle)
            if stay is not None:
                wake(handle, "the service is stopping")
                stay.end(End("stopped"))
            handle.changed.ring()
