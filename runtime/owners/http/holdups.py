"""What holds a job up, in words: leases that are lost, phases over their worst case, and an owner that has not ended yet."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import Overdue, overdue_phases
from runtime.owners.http.ledger import Lease, Ledger


def stuck_jobs(ledger: Ledger) -> frozenset[str]:
    """Return the jobs of which nobody knows when they leave: their lease is lost, or a phase of theirs is over its worst case."""
    overdue = (handle.id for handle in [*ledger.run.handles.values()] if any(overdue_phases(ledger.run, handle)))
    return frozenset(ledger.suspected) | frozenset(overdue)


def suspects_words(lease: Lease) -> str:
    """Return what is known of the nodes that a lost lease held, and what frees them."""
    names = sorted(lease.suspects)
    clear = " and ".join(f"`rollmux clear {name}`" for name in names)
    return f"{', '.join(names)} may still be in use by {lease.handle.id}: {clear}"


def queue_holdup(ledger: Ledger) -> str:
    """Return what keeps nodes from all jobs that wait for a place; empty where nothing does."""
    return "; ".join(suspects_words(lease) for lease in ledger.suspected.values())


def holdup(ledger: Ledger, handle: JobHandle) -> str | None:
    """Return why a job that has a place does not go on as planned, or None."""
    own = ledger.suspected.get(handle.id)
    if own is not None:
        return suspects_words(own)
    if handle.ending.why is not None and not handle.ending.again and handle.permits.holds:
        ttl_s = ledger.run.plan.leases.ttl_s
        return f"is being ended: its owner has {ttl_s:g} s to end its {handle.permits.phase}, and then its lease is lost"
    overdue = next(overdue_phases(ledger.run, handle), None)
    if overdue is not None:
        return overdue.words
    return next(_blockers(ledger, handle), None)


def _blockers(ledger: Ledger, handle: JobHandle) -> Iterator[str]:
    """Yield what is wrong with the jobs that hold the nodes of the permits that a job waits for."""
    awaited = [phase for phase, waits in handle.permits.waits.items() if not waits.done() and phase not in handle.permits.holds]
    names = {node.name for phase in awaited for node in handle.place.nodes_of(phase)}
    if not names:
        return
    run = ledger.run
    blocking = run.scheduler.members.stopped and not run.stopping
    for lease in ledger.suspected.values():
        if blocking or names & lease.suspects:
            yield suspects_words(lease)
    for other in run.nodes.holders(names):
        if other != handle.id and other in run.handles:
            yield from (_waits_for(one) for one in overdue_phases(run, run.handles[other]) if names & {*one.nodes})


def _waits_for(one: Overdue) -> str:
    return (
        f"waits for {' '.join(one.nodes)}, which {one.job_id} has held for {one.held_s:.0f} s in its {one.phase}; "
        f"its worst case is {one.worst_case_s:.4g} s"
    )
