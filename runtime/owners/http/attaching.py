"""How an owner comes to the place of its job: it waits until there is one, on its own host, which nobody else has a lease of."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rollmux_env.validation_errors import one_line
from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import End
from runtime.owners.http.confining import nodes_of_host
from runtime.owners.http.ending import Ending
from runtime.owners.http.lease import Stay
from runtime.owners.http.ledger import Ledger
from runtime.owners.http.measuring import ask_to_measure
from runtime.owners.http.watch import LeaseWatch
from runtime.refusals import Conflict, NotFound


class Attaching:
    """Brings owners and places together.

    Args:
        ledger: of the leases. lifecycle: of the jobs. ending: of leases that owners give up by attaching anew. watch: of those that
            are lost.
    """

    def __init__(self, ledger: Ledger, lifecycle: JobLifecycle, ending: Ending, watch: LeaseWatch) -> None:
        self._ledger = ledger
        self._run = ledger.run
        self._lifecycle = lifecycle
        self._ending = ending
        self._watch = watch

    async def place(self, job_id: str, wait_s: float, host: str, pids: Collection[int]) -> tuple[JobHandle, Stay | None]:
        """Wait until a job has a place that its owner can have a lease of.

        Args:
            wait_s: for so long. host: on which the owner is, if it says so. pids: its processes there.

        Returns:
            The job as it is then, and its time in this place; None: it has none.

        Raises:
            NotFound, Conflict: as `runtime.owners.http.leases.Leases.attach`.
        """
        run, clock = self._run, asyncio.get_running_loop()
        until_s = clock.time() + wait_s
        while True:
            await run.written()
            handle = self._handle_of(job_id)
            if handle.gone or (handle.ending.why is not None and not handle.ending.again):
                raise Conflict(f"job {job_id}: has ended")
            stay = self._ledger.stay(handle)
            lease = stay.lease if stay is not None else None
            if lease is not None and not lease.ended:
                if not lease.moves or lease.turns.open:
                    raise Conflict(f"job {job_id}: another lease of it lives")
                self._ending.leave(lease, "its owner has attached anew")
                continue
            if (suspected := self._ledger.suspected.get(job_id)) is not None:
                self._watch.speak_for(suspected, pids)
            self._bring_to(host, handle)
            if handle.spec.profile is not None:
                ask_to_measure(run, handle)
            if handle.place.parks and handle.ending.why is None and not run.stopping:
                self._lifecycle.unpark(handle)
            stay = self._ledger.stay(handle)  # it may have got its place just now
            if stay is not None and not stay.over.done() and handle.ending.why is None and not run.stopping and run.present(handle):
                return handle, stay
            if clock.time() >= until_s or run.stopping:
                return handle, None
            await handle.changed.wait(until_s - clock.time())

    def reason(self, handle: JobHandle) -> tuple[str, int | None]:
        """Why a job has no place, in words, and its position in the queue, from 1; None: it is not there."""
        waiting = self._run.scheduler.state.waiting
        position = waiting.index(handle.id) + 1 if handle.id in waiting else None
        if handle.ending.why is not None:
            return f"what its last lease held may be in use: {handle.ending.why.problem}", position
        if self._run.stopping:
            return "the service is stopping", position
        return "has no place yet" if position is None else "waits for nodes", position

    def _bring_to(self, host: str, handle: JobHandle) -> None:
        """See that a job gets nodes of its owner's host; it gives up a place elsewhere that nobody has attached to yet."""
        run, stay = self._run, self._ledger.stay(handle)
        names = nodes_of_host(run, handle.spec, host)
        if names is None or handle.ending.why is not None or run.stopping or (stay is not None and stay.lease is not None):
            return
        if run.present(handle) and {node.name for node in handle.nodes_of("sync")} <= names:
            return
        run.confine(handle, names)
        if stay is not None and run.present(handle):
            stay.end(End("died", "step", f"its owner is on {one_line(host, 80)}"))

    def _handle_of(self, job_id: str) -> JobHandle:
        handle = self._run.handles.get(job_id)
        if handle is None:
            raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
        if not handle.spec.is_attached:
            raise Conflict(f"job {job_id}: is run by the service itself; nobody attaches to it")
        return handle
