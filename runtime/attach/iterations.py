"""The iterations of attached jobs: permits asked for, phases that end, and what is recorded of them."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.attach.lease import Ask, Lease
from runtime.attach.ledger import Ledger
from runtime.attach.measuring import measure, measured
from runtime.execution.iteration_ends import IterationEnds
from runtime.execution.job_handle import Asked, busy_s
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import Done, Report
from runtime.facts import Exceeded, Granted, PhaseSlice, SyncSlice

_OWN = "owner"  # who counts an attached job's progress


class Iterations:
    """Tells the scheduler and the journal what owners do.

    Args:
        ledger: of the leases. ends, lifecycle: of the run.
    """

    def __init__(self, ledger: Ledger, ends: IterationEnds, lifecycle: JobLifecycle) -> None:
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._run = ledger.run
        self._ends = ends

    def ask(self, lease: Lease, ask: Ask) -> None:
        """An owner wants a permit, and is in for it unless its budget is spent; raises as `Lease.check_turn`."""
        handle, now_s, state = lease.handle, self._run.log.now(), self._run.scheduler.state
        ahead = handle.spec.staleness and state.is_running(handle.id)
        if lease.check_turn(ask):
            self.iterated(lease)
            ahead = True
        if ahead and state.is_over_budget(handle.id, now_s):
            return
        if ask.phase == "rollout" and not ask.extra:
            handle.began_s.setdefault(ask.iteration, now_s)
        handle.asks[ask.phase], handle.parts = Asked(now_s, ask.iteration), ()
        handle.wait_for(ask.phase)
        lease.opens[ask.phase] = ask
        lease.granted.discard(ask.phase)
        self._run.tell(facts.Ready(handle.id, ask.phase))

    def grant(self, lease: Lease, ask: Ask) -> None:
        """The owner is about to be told that it has a permit."""
        hold = lease.handle.holds[ask.phase]
        lease.granted.add(ask.phase)
        job_id, now_s = lease.handle.id, self._run.log.now()
        self._run.log.write(Granted(now_s, job_id, lease.id, *ask, hold.asked_s, hold.start_s, hold.switched))

    def progress(self, lease: Lease, done: int, total: int, tokens: int) -> None:
        """How far the phase in hand is."""
        lease.handle.progress[_OWN] = (done, total, tokens)

    def keeps(self, lease: Lease, ask: Ask, device_gb: float) -> None:
        """A job keeps so much GPU memory between its phases; if that is more than it may, it is alone from now on."""
        handle = lease.handle
        stated_gb = getattr(handle.spec, ask.phase).device_gb if ask.phase != "sync" else None
        if stated_gb is None or device_gb <= stated_gb or handle.exceeds:
            return
        note = Exceeded(self._run.log.now(), handle.id, ask.phase, device_gb, stated_gb)
        handle.exceeds = note.why
        self._run.log.say(f"{handle.id}: WARNING: {note.why}")
        self._run.tell(facts.Alone(handle.id), notes=(note,))

    def finish(self, lease: Lease, ask: Ask) -> None:
        """A phase is over, and its nodes are free."""
        handle = lease.handle
        hold = handle.holds[ask.phase]
        now_s, cold = self._run.log.now(), ask.phase not in lease.warm
        seconds = now_s - hold.start_s
        if ask.phase == "sync":
            names = tuple(node.name for node in handle.nodes_of("sync"))
            note = SyncSlice(handle.id, handle.is_guest, ask.iteration, names, hold.start_s, now_s, (), hold.asked_s)
            notes: tuple[PhaseSlice | SyncSlice, ...] = (note,)
            news: tuple[facts.Fact, ...] = (facts.Synced(handle.id, seconds),)
        else:
            report = Report(ask.phase, False, hold.start_s, hold.start_s, now_s, cold=cold)
            part = handle.slice(report, now_s, (), extra=ask.extra)
            notes, news = (part,), ()
            handle.busy_s[handle.pool_of(ask.phase)] += busy_s(part)
        if not ask.extra:
            measure(handle, ask.phase, seconds)
        lease.release(ask.phase)
        del handle.holds[ask.phase]
        handle.permits.pop(ask.phase, None)
        if handle.spec.staleness and ask.phase == "rollout" and lease.rollouts == handle.spec.iterations:
            news += (facts.Sampled(handle.id),)
        lease.notify()
        self._run.tell(facts.Finished(handle.id, ask.phase, seconds, cold, not ask.extra), *news, notes=notes)
        if ask.phase == "training" and not handle.spec.sync_s:
            self.iterated(lease)

    def synced(self, lease: Lease, iteration: int, seconds: float) -> None:
        """The new weights of an iteration are on the rollout nodes."""
        run, handle = self._run, lease.handle
        if "sync" in lease.granted:
            self.finish(lease, lease.opens["sync"])
        if lease.syncs <= iteration:
            lease.syncs = iteration + 1
            names = tuple(node.name for node in handle.nodes["rollout"])
            beside = tuple(holder for holder in run.nodes.holders(names) if holder != handle.id)
            now_s = run.log.now()
            note = SyncSlice(handle.id, handle.is_guest, iteration, names, max(0.0, now_s - seconds), now_s, beside)
            measure(handle, "sync", seconds)
            run.tell(facts.Synced(handle.id, seconds), notes=(note,))
        if lease.trainings > handle.iteration:
            self.iterated(lease)

    def iterated(self, lease: Lease) -> None:
        """The iteration in hand is over: it counts."""
        handle = lease.handle
        metrics = lease.metrics.pop(handle.iteration, {})
        lease.notify()
        iterated, notes = self._ends.record(handle, Done(metrics, movable=handle.spec.movable))
        if iterated is None:
            measured(self._run, self._lifecycle, lease, notes)
            return
        self._run.tell(iterated, notes=notes)
        lease.moves = handle.moving or self._run.scheduler.is_to_go(handle.id)
