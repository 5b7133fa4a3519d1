"""Reasons why a job makes no progress: lost leases, phases over their worst case, and owners that have yet to end."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import Overdue, overdue_phases
from runtime.owners.http.ledger import Lease, Ledger


def stuck_jobs(ledger: Ledger) -> frozenset[str]:
    """Return the ids of jobs whose departure cannot be predicted: a lease is lost, or a phase is over its worst case."""
    now_s = ledger.run.log.now()
    overdue = (handle.id for handle in [*ledger.run.handles.values()] if any(overdue_phases(ledger.run, handle, now_s)))
    return frozenset(ledger.suspected) | frozenset(overdue)


def suspects_words(lease: Lease) -> str:
    """Return a message that names the nodes of a lost lease, and the commands that free them."""
    names = sorted(lease.suspect_nodes)
    clear = " and ".join(f"`rollmux clear {name}`" for name in names)
    return f"{', '.join(names)} may still be in use by {lease.handle.id}: {clear}"


def queue_holdup(ledger: Ledger) -> str:
    """Return the reason why no waiting job can get nodes, or an empty string if there is none."""
    return "; ".join(suspects_words(lease) for lease in ledger.suspected.values())


def holdup(ledger: Ledger, handle: JobHandle) -> str | None:
    """Return the reason why a job with a placement makes no progress, or None if it progresses as planned."""
    own = ledger.suspected.get(handle.id)
    if own is not None:
        return suspects_words(own)
    if handle.ending.why is not None and not handle.ending.restarts and handle.permits.holds:
        ttl_s = ledger.run.plan.leases.ttl_s
        return f"is being ended: its owner has {ttl_s:g} s to end its {handle.permits.phase}, and then its lease is lost"
    overdue = next(overdue_phases(ledger.run, handle, ledger.run.log.now()), None)
    if overdue is not None:
        return overdue.description
    return next(_blockers(ledger, handle), None)


def _blockers(ledger: Ledger, handle: JobHandle) -> Iterator[str]:
    """Yield the problems of the jobs that hold the nodes for which a job waits."""
    awaited = [phase for phase, waits in handle.permits.futures.items() if not waits.done() and phase not in handle.permits.holds]
    names = {node.name for phase in awaited for node in handle.place.nodes_of(phase)}
    if not names:
        return
    run = ledger.run
    blocking = run.scheduler.members.stopped and not run.stopping
    for lease in ledger.suspected.values():
        if blocking or names & lease.suspect_nodes:
            yield suspects_words(lease)
    for other in run.nodes.holders(names):
        if other != handle.id and other in run.handles:
            overdue = overdue_phases(run, run.handles[other], run.log.now())
            yield from (_waits_for(one) for one in overdue if names & {*one.nodes})


def _waits_for(one: Overdue) -> str:
    reason = f"waits for {' '.join(one.nodes)}, which {one.job_id} has held for {one.held_s:.0f} s in its {one.phase}"
    return f"{reason}; {one.limit}"
