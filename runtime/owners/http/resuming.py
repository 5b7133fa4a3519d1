"""Leases of a run that goes on: they are as they were, and so is what they hold."""

from __future__ import annotations

from rollmux_client import Turn

from rollmux_env.scheduler import facts
from runtime.execution.job_handle import Hold
from runtime.execution.messages import End
from runtime.execution.nodes import POOLS
from runtime.journal.facts import Attached, Fact, Granted, LeaseEnded, Suspected
from runtime.journal.record import RunRecord
from runtime.owners.http.ledger import Lease, Ledger, Stay
from runtime.owners.protocol import continued, turns_of


def recall_leases(ledger: Ledger, record: RunRecord) -> None:
    """Find the leases that live, and those that are lost and of which nodes may still be in use."""
    run = ledger.run
    ended = {fact.lease: fact for fact in record.leases_ended}
    last: dict[str, Attached] = {}
    for fact in record.attached:
        last[fact.job_id] = fact
    for job_id, fact in last.items():
        handle = run.handles[job_id]
        done = sum(iteration.job_id == job_id for iteration in record.iterations)
        lease = Lease(fact, handle, Stay(0.0), 0.0, turns_of(handle, done))
        over = ended.get(fact.lease)
        lease.suspects = _suspects(record, fact.lease)
        if over is None or lease.suspects:
            if over is not None:
                lease.go("lose", over.why)
            _recall_phases(lease, record)
            ledger.recalled[job_id] = lease


def is_in_use(record: RunRecord, job_id: str) -> bool:
    """Whether an owner may be using nodes of a job."""
    last = {fact.phase: fact for fact in record.granted if fact.job_id == job_id}
    leases = {grant.lease for grant in last.values() if not _is_over(record, grant)}
    ended = {fact.lease for fact in record.leases_ended}
    return any(lease not in ended or _suspects(record, lease) for lease in leases)


def continue_leases(ledger: Ledger, record: RunRecord) -> None:
    """Jobs have their places again: let the scheduler know what they hold, before anything is granted."""
    run = ledger.run
    over = {fact.job_id for fact in record.failed} | {fact.job_id for fact in record.cancelled}
    for job_id, lease in [*ledger.recalled.items()]:  # of jobs that have no place
        del ledger.recalled[job_id]
        _displaced(ledger, lease)
    for handle in [*run.handles.values()]:
        stay = ledger.stay(handle)
        if stay is not None and stay.lease is not None:
            stay.since_s = run.log.now()
            _continue(ledger, stay, stay.lease, handle.id in over)


def _continue(ledger: Ledger, stay: Stay, lease: Lease, is_over: bool) -> None:
    """The job of a lease has a place.

    Args:
        is_over: so is the job.
    """
    run, handle, turns = ledger.run, lease.handle, lease.turns
    elsewhere = {*lease.owner.nodes} != handle.names
    if elsewhere and (turns.open or lease.ended):
        stay.lease = None
        _displaced(ledger, lease)
        return
    if elsewhere:
        lease.go("move")  # it was told, or would have been
    ledger.leases[lease.id] = lease
    if lease.suspects:
        ledger.suspected[handle.id] = lease
    lease.sign_s = stay.since_s
    run.follow(continued(handle, turns.rollouts, turns.trainings, turns.open))
    if is_over:
        if not lease.ended:
            lease.go("stop")
        handle.ending.why, lease.stops_s = End("cancelled"), stay.since_s
        run.tell(facts.Failed(handle.id))
    elif lease.ended:
        stay.end(End("died", "step", lease.ended))
    else:
        handle.actors.has_come = True
        run.log.say(f"{handle.id}: its lease goes on")


def _displaced(ledger: Ledger, lease: Lease) -> None:
    """The place of a lease has gone with the coordinator, or is elsewhere now; what it held there may be in use."""
    run, now_s, job_id = ledger.run, ledger.run.log.now(), lease.handle.id
    if not lease.ended:
        lease.go("lose", "its place has gone")
        entries: list[Fact] = [LeaseEnded(now_s, job_id, lease.id, False, lease.ended)]
        if lease.turns.open:
            names = sorted(lease.owner.nodes)
            lease.suspects = set(names)
            entries.append(Suspected(now_s, job_id, lease.id, tuple(names)))
        run.log.write(*entries)
    lease.handle.give_up()
    if lease.suspects:
        lease.sign_s = now_s
        ledger.leases[lease.id] = ledger.suspected[job_id] = lease
        ledger.block(lease)


def _suspects(record: RunRecord, lease_id: str) -> set[str]:
    suspects = {name for fact in record.suspected if fact.lease == lease_id for name in fact.nodes}
    return suspects - {name for fact in record.freed if fact.lease == lease_id for name in fact.nodes}


def _recall_phases(lease: Lease, record: RunRecord) -> None:
    """How far its owner is in the iteration in hand."""
    handle, job_id = lease.handle, lease.handle.id
    began_s = next(fact.at_s for fact in record.attached if fact.lease == lease.id)
    mine = [part for part in record.phases if part.job_id == job_id and part.ok and part.end_s >= began_s]
    lease.warm = {part.phase for part in mine}
    number = lease.turns.done
    own = [part for part in mine if not part.extra]
    rollouts, trainings = (max([number, *(part.iteration + 1 for part in own if part.phase == phase)]) for phase in POOLS)
    syncs = max([number, *(sync.iteration + 1 for sync in record.syncs if sync.job_id == job_id and sync.end_s >= began_s)])
    lease.turns.restore(rollouts, trainings, syncs)
    for grant in {fact.phase: fact for fact in record.granted if fact.lease == lease.id}.values():
        if not _is_over(record, grant):
            lease.turns.take_up(Turn(grant.phase, grant.iteration, grant.extra))
            handle.permits.holds[grant.phase] = Hold(
                grant.phase, grant.asked_s, grant.start_s, grant.switched, False, grant.iteration
            )


def _is_over(record: RunRecord, grant: Granted) -> bool:
    """Whether the phase that an owner was told of has ended; one of the same number may have been before, of another lease."""
    if grant.phase == "sync":
        mine = (sync for sync in reversed(record.syncs) if sync.job_id == grant.job_id and sync.asked_s is not None)
        return any(sync.iteration == grant.iteration and sync.end_s >= grant.at_s for sync in mine)
    asked = (grant.job_id, grant.phase, grant.iteration, grant.extra)
    parts = (part for part in reversed(record.phases) if (part.job_id, part.phase, part.iteration, part.extra) == asked)
    return any(part.end_s >= grant.at_s for part in parts)
