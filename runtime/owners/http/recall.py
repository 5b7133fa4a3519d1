"""Restoration of leases when a run is resumed, from what its journal says of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollmux_env.scheduler import facts
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.permits import GrantedPermit
from runtime.jobs.spec import CommandJob
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import LeaseEnded, NodesSuspected
from runtime.journal.leases import LeaseFact, RecalledLease
from runtime.owners.http.ledger import AttachedPlacement, Lease, Ledger
from runtime.owners.protocol import continued


def recall_leases(ledger: Ledger, recalled: Mapping[str, RecalledLease]) -> None:
    """Restore the active leases of a resumed run, and the others whose nodes may still be in use.

    A command that has given its lease back within a phase keeps the phase's nodes until it has been ended.

    Args:
        ledger: Ledger of the new run, to which they are added.
        recalled: Last lease of each job according to the journal, by job id.
    """
    for handle in ledger.run.handles.values():
        known = recalled.get(handle.id)
        if known is None:
            continue
        end = known.record.end
        lease = Lease(known.record, handle, AttachedPlacement(0.0), 0.0 if end is None else end.at_s)
        if end is None or lease.suspect_nodes or (known.grants and isinstance(handle.spec, CommandJob)):
            for phase, grant in known.grants.items():
                number = PROFILE if phase == "init" else grant.iteration
                handle.permits.add_grant(GrantedPermit(phase, grant.asked_s, grant.start_s, grant.switched, False, number))
            handle.permits.resume_iterations(known.began_s)
            ledger.recalled[handle.id] = lease
        else:  # its owner may still report that the job is done
            lease.settle()
            ledger.leases[lease.id] = lease


def continue_leases(ledger: Ledger, failed: Collection[str], done: Collection[str]) -> None:
    """Report the phases that leases hold to the scheduler of a resumed run, before it grants anything.

    Args:
        ledger: Ledger of the run, after `recall_leases`. Jobs have their placements again.
        failed: Ids of the jobs that were cancelled or have failed.
        done: Ids of the jobs that are done.
    """
    run = ledger.run
    ends = dict.fromkeys(done, JobEnd("done")) | dict.fromkeys(failed, JobEnd("cancelled"))
    for job_id, lease in [*ledger.recalled.items()]:  # only jobs without a placement are left
        uses_nothing, waits = lease.turns.is_between and not lease.is_over, job_id in run.scheduler.state.waiting
        if uses_nothing and waits and lease.turns.rollouts == lease.turns.done and job_id not in ends:
            _continue_waiting(ledger, lease)
            continue
        del ledger.recalled[job_id]
        if uses_nothing and not waits and job_id not in ends:
            _attaches_again(ledger, lease)
        else:
            _displaced(ledger, lease)
    for handle in [*run.handles.values()]:
        placement = ledger.placement_of(handle)
        if placement is not None and placement.lease is not None:
            placement.unclaim(run.log.now())
            _continue(ledger, placement, placement.lease, ends.get(handle.id))
        elif placement is not None and handle.id in ends:  # a command without a lease, which may not have ended
            _end(ledger, handle, ends[handle.id])


def _continue(ledger: Ledger, placement: AttachedPlacement, lease: Lease, end: JobEnd | None) -> None:
    """Resume a lease whose job has a placement.

    Args:
        ledger: Ledger of the run.
        placement: Placement of the job, with its last lease.
        lease: The lease.
        end: End of the job, which keeps its place only until its nodes are free, or None if it continues.
    """
    run, handle, turns = ledger.run, lease.handle, lease.turns
    elsewhere = lease.is_elsewhere
    if elsewhere and (turns.open or lease.is_over):
        # Freeing the nodes of the last lease must not free those of the next one.
        lease.part()
        _displaced(ledger, lease)
        if end is not None:
            _end(ledger, handle, end)
        return
    if elsewhere:
        lease.apply_event("move")  # as the former service did or would have done
    ledger.leases[lease.id] = lease
    if lease.suspect_nodes:
        ledger.suspected[handle.id] = lease
    if not lease.is_over:
        lease.hear(placement.unclaimed_since_s)
    handle.permits.restart_clocks(placement.unclaimed_since_s)  # without a coordinator no phase could be released
    run.apply(continued(handle, turns.rollouts, turns.trainings, turns.open))
    if end is not None:
        if not lease.is_over:
            lease.ask_to_stop(placement.unclaimed_since_s)
        _end(ledger, handle, end)
    elif lease.is_over:
        placement.end(JobEnd("died", "step", lease.why_over))
    else:
        handle.processes.record_contact()
        run.log.say(f"{handle.id}: its lease continues")


def _end(ledger: Ledger, handle: JobHandle, end: JobEnd) -> None:
    """Let a job end that keeps its place until its nodes are free."""
    handle.begin_end(end)
    ledger.run.apply(Consequences((facts.Failed(handle.id),)))


def _continue_waiting(ledger: Ledger, lease: Lease) -> None:
    """Let an owner that uses nothing wait for the next placement of its job, to which the lease then belongs."""
    lease.hear(ledger.run.log.now())
    ledger.leases[lease.id] = lease
    ledger.run.log.say(f"{lease.handle.id}: its lease continues")


def _attaches_again(ledger: Ledger, lease: Lease) -> None:
    """Let an owner that uses nothing give up nodes that are not restored, such as those lent to it, and attach again."""
    lease.handle.permits.clear()
    if not lease.must_move:
        lease.apply_event("move")
    lease.hear(ledger.run.log.now())
    ledger.leases[lease.id] = lease
    ledger.run.log.say(f"{lease.handle.id}: its nodes have gone with the former service; its owner attaches again")


def _displaced(ledger: Ledger, lease: Lease) -> None:
    """Lose a lease whose placement has not been restored. Its nodes may still be in use."""
    now_s, job_id = ledger.run.log.now(), lease.handle.id
    if not lease.is_over:
        entries: list[LeaseFact] = [LeaseEnded(now_s, job_id, lease.id, False, "its place has gone", lost=True)]
        if lease.turns.open:
            entries.append(NodesSuspected(now_s, job_id, lease.id, tuple(sorted(lease.owner.nodes))))
        ledger.write(lease, *entries)
    lease.handle.permits.clear()
    ledger.leases[lease.id] = lease
    if lease.suspect_nodes:
        lease.hear(now_s)
        ledger.suspected[job_id] = lease
        ledger.block(lease)
    else:
        lease.settle()  # its owner may still report that the job is done
