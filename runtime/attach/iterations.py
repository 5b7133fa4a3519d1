"""The iterations of attached jobs: permits asked for, phases that end, and what is recorded of them."""

from __future__ import annotations

import asyncio

from rollmux_env.scheduler import facts
from runtime.attach.lease import Ask, Lease
from runtime.attach.ledger import Ledger
from runtime.attach.measuring import measure, measured
from runtime.execution.job_calls import JobCalls
from runtime.execution.job_handle import busy_s
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import Done, Report
from runtime.facts import Granted, PhaseSlice, SyncSlice

_OWN = "owner"  # who counts an attached job's progress


class Iterations:
    """Tells the scheduler and the journal what owners do.

    Args:
        ledger: of the leases. calls, lifecycle: of the run.
    """

    def __init__(self, ledger: Ledger, calls: JobCalls, lifecycle: JobLifecycle) -> None:
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._run = ledger.run
        self._calls = calls

    def ask(self, lease: Lease, ask: Ask) -> None:
        """An owner wants a permit, and is in for it unless its budget is spent; raises as `Lease.check_turn`."""
        handle, now_s = lease.handle, self._run.log.now()
        if lease.check_turn(ask):
            self.iterated(lease)
            if self._run.scheduler.state.is_over_budget(handle.id, now_s):
                return
        if ask.phase == "rollout" and not ask.extra and handle.began_s is None:
            handle.began_s = now_s
        handle.asked_s, handle.parts = now_s, ()
        handle.permit = asyncio.get_running_loop().create_future()
        lease.open, lease.granted = ask, False
        self._run.tell(facts.Ready(handle.id, ask.phase))

    def grant(self, lease: Lease) -> None:
        """The owner is about to be told that it has its permit."""
        hold, ask = lease.handle.hold, lease.open
        assert hold is not None and ask is not None
        lease.granted = True
        job_id, now_s = lease.handle.id, self._run.log.now()
        self._run.log.write(Granted(now_s, job_id, lease.id, *ask, hold.asked_s, hold.start_s, hold.switched))

    def progress(self, lease: Lease, done: int, total: int, tokens: int) -> None:
        """How far the phase in hand is."""
        lease.handle.progress[_OWN] = (done, total, tokens)

    def finish(self, lease: Lease) -> None:
        """The phase in hand is over, and its nodes are free."""
        handle, ask = lease.handle, lease.open
        hold = handle.hold
        assert hold is not None and ask is not None
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
        lease.release()
        handle.hold, handle.permit = None, None
        self._run.tell(facts.Finished(handle.id, ask.phase, seconds, cold, not ask.extra), *news, notes=notes)
        if ask.phase == "training" and not handle.spec.sync_s:
            self.iterated(lease)

    def synced(self, lease: Lease, iteration: int, seconds: float) -> None:
        """The new weights of an iteration are on the rollout nodes."""
        run, handle = self._run, lease.handle
        if lease.open is not None and lease.open.phase == "sync" and lease.granted:
            self.finish(lease)
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
        iterated, notes = self._calls.record(handle, Done(lease.metrics, movable=handle.spec.movable))
        lease.metrics = {}
        if iterated is None:
            measured(self._run, self._lifecycle, lease, notes)
            return
        self._run.tell(iterated, notes=notes)
        lease.moves = handle.moving or self._run.scheduler.is_to_go(handle.id)
