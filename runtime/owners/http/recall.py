"""Restoration of leases when a run is resumed: their journal facts are replayed in order, and then the leases continue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rollmux_protocol import Turn, Turns

from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.permits import GrantedPermit
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import (
    Fact,
    IterationSlice,
    JobRolledBack,
    JobSubmitted,
    LeaseEnded,
    NodesFreed,
    NodesSuspected,
    OwnerAttached,
    PhaseGranted,
    PhaseSlice,
    SyncSlice,
)
from runtime.machines.nodes import POOLS
from runtime.owners.http.ledger import AttachedPlacement, Lease, Ledger
from runtime.owners.protocol import continued


@dataclass
class RecalledLease:
    """State of a lease according to a journal.

    Attributes:
        owner: Owner in its last recorded state.
        turns: Progress of the owner, and the phases that it has been granted.
        warm: Phases that the owner has run before.
        grants: Facts of the phases that the owner holds, by phase.
        suspects: Names of the nodes that the lease held when it was lost and that have not been freed.
        end: Fact that ended the lease, or None while it is active.
    """

    owner: OwnerAttached
    turns: Turns
    warm: set[str] = field(default_factory=set)
    grants: dict[HoldName, PhaseGranted] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    end: LeaseEnded | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether the owner may be using nodes."""
        return bool(self.grants) and (self.end is None or bool(self.suspects))

    def grant(self, fact: PhaseGranted) -> None:
        """Record that the owner has been granted a phase."""
        self.grants[fact.phase] = fact
        self.turns.restore_grant(Turn(fact.phase, fact.iteration, fact.extra))

    def finish(self, part: PhaseSlice) -> None:
        """Record the end of a phase. A phase that was interrupted does not count."""
        turn = Turn(part.phase, self.turns.begins if part.phase == "init" else part.iteration, part.extra and part.phase != "init")
        if part.ok:
            self.warm |= {*POOLS} if part.phase == "init" else {part.phase}
            self.turns.restore_grant(turn)
            self.turns.release(turn.phase)
        else:
            self.turns.drop(turn.phase)
        self.grants.pop(turn.phase, None)

    def sync(self, part: SyncSlice) -> None:
        """Record the end of a sync, whether or not its owner held all nodes for it."""
        self.turns.restore_grant(Turn("sync", part.iteration))
        self.turns.release("sync")
        self.grants.pop("sync", None)


class RecalledLeases:
    """The leases in a journal.

    Args:
        journal: Facts of the journal, in their order.

    Attributes:
        last: Last lease of each job that has had one, by job id.
    """

    def __init__(self, journal: Iterable[Fact]) -> None:
        self.last: dict[str, RecalledLease] = {}
        self._all: dict[str, RecalledLease] = {}
        self._of_job: defaultdict[str, list[RecalledLease]] = defaultdict(list)
        self._counted: Counter[str] = Counter()
        self._limits: dict[str, tuple[int, int]] = {}  # iterations and staleness of attached jobs
        for fact in journal:
            self._follow(fact)

    def are_in_use(self, job_id: str) -> bool:
        """Return whether any owner may be using nodes of a job."""
        return any(lease.is_in_use for lease in self._of_job[job_id])

    def _follow(self, fact: Fact) -> None:
        match fact:
            case JobSubmitted(spec=spec) if spec.is_attached:
                self._limits[spec.id] = spec.iterations, spec.staleness
            case OwnerAttached(lease=lease_id) if lease_id in self._all:
                self._all[lease_id].owner = fact
            case OwnerAttached(job_id=job_id):
                lease = RecalledLease(fact, Turns(*self._limits[job_id], self._counted[job_id]))
                self.last[job_id] = self._all[fact.lease] = lease
                self._of_job[job_id].append(lease)
            case PhaseGranted(lease=lease_id):
                self._all[lease_id].grant(fact)
            case LeaseEnded(lease=lease_id) if lease_id in self._all:
                self._all[lease_id].end = fact
            case NodesSuspected(lease=lease_id):
                self._all[lease_id].suspects |= {*fact.nodes}
            case NodesFreed(lease=lease_id):
                self._all[lease_id].suspects -= {*fact.nodes}
            case PhaseSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].finish(fact)
            case SyncSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].sync(fact)
            case IterationSlice(job_id=job_id) if job_id in self.last:
                self._counted[job_id] = self.last[job_id].turns.done = fact.number + 1
            case JobRolledBack(job_id=job_id):
                self._counted[job_id] = fact.iteration
                self.last[job_id].turns.go_back(fact.iteration)


def recall_leases(ledger: Ledger, recalled: Mapping[str, RecalledLease]) -> None:
    """Restore the active leases of a resumed run, and the lost ones whose nodes may still be in use.

    Args:
        ledger: Ledger of the new run, to which they are added.
        recalled: Last lease of each job according to the journal, by job id.
    """
    for job_id, known in recalled.items():
        handle, end = ledger.run.handles[job_id], known.end
        lease = Lease(known.owner, handle, AttachedPlacement(0.0), 0.0 if end is None else end.at_s, known.turns)
        lease.suspect_nodes, lease.warm = known.suspects, known.warm
        if end is not None:
            lease.is_lost = True
            lease.apply_event("lose", end.why)
        if end is None or lease.suspect_nodes:
            for phase, grant in known.grants.items():
                number = PROFILE if phase == "init" else grant.iteration
                handle.permits.add_grant(GrantedPermit(phase, grant.asked_s, grant.start_s, grant.switched, False, number))
            ledger.recalled[job_id] = lease
        else:  # its owner may still report that the job is done
            lease.apply_event("free")
            ledger.leases[lease.id] = lease


def continue_leases(ledger: Ledger, over: Collection[str]) -> None:
    """Report the phases that leases hold to the scheduler of a resumed run, before it grants anything.

    Args:
        ledger: Ledger of the run, after `recall_leases`. Jobs have their placements again.
        over: Ids of the jobs that were cancelled or have failed.
    """
    run = ledger.run
    for job_id, lease in [*ledger.recalled.items()]:  # only jobs without a placement are left
        del ledger.recalled[job_id]
        _displaced(ledger, lease)
    for handle in [*run.handles.values()]:
        placement = ledger.placement_of(handle)
        if placement is not None and placement.lease is not None:
            placement.unclaimed_since_s = run.log.now()
            _continue(ledger, placement, placement.lease, handle.id in over)


def _continue(ledger: Ledger, placement: AttachedPlacement, lease: Lease, is_over: bool) -> None:
    """Resume a lease whose job has a placement.

    Args:
        ledger: Ledger of the run.
        placement: Placement of the job, with its last lease.
        lease: The lease.
        is_over: Whether the job was cancelled or has failed.
    """
    run, handle, turns = ledger.run, lease.handle, lease.turns
    elsewhere = lease.is_elsewhere
    if elsewhere and (turns.open or lease.ended):
        # Freeing the nodes of the last lease must not free those of the next one.
        placement.lease, lease.placement = None, AttachedPlacement(placement.unclaimed_since_s)
        _displaced(ledger, lease)
        if is_over:
            handle.begin_end(JobEnd("cancelled"))
            run.apply(Consequences((facts.Failed(handle.id),)))
        return
    if elsewhere:
        lease.apply_event("move")  # as the former service did or would have done
    ledger.leases[lease.id] = lease
    if lease.suspect_nodes:
        ledger.suspected[handle.id] = lease
    lease.last_heartbeat_s = lease.last_heartbeat_s if lease.ended else placement.unclaimed_since_s
    handle.permits.restart_clocks(placement.unclaimed_since_s)  # without a coordinator no phase could be released
    run.apply(continued(handle, turns.rollouts, turns.trainings, turns.open))
    if is_over:
        if not lease.ended:
            lease.apply_event("stop")
        handle.begin_end(JobEnd("cancelled"))
        lease.stop_requested_s = placement.unclaimed_since_s
        run.apply(Consequences((facts.Failed(handle.id),)))
    elif lease.ended:
        placement.end(JobEnd("died", "step", lease.ended))
    else:
        handle.processes.record_contact()
        run.log.say(f"{handle.id}: its lease continues")


def _displaced(ledger: Ledger, lease: Lease) -> None:
    """Lose a lease whose placement has not been restored. Its nodes may still be in use."""
    run, now_s, job_id = ledger.run, ledger.run.log.now(), lease.handle.id
    if not lease.ended:
        lease.is_lost = True
        lease.apply_event("lose", "its place has gone")
        entries: list[Fact] = [LeaseEnded(now_s, job_id, lease.id, False, lease.ended)]
        if lease.turns.open:
            names = sorted(lease.owner.nodes)
            lease.suspect_nodes = set(names)
            entries.append(NodesSuspected(now_s, job_id, lease.id, tuple(names)))
        run.log.write(*entries)
    lease.handle.permits.clear()
    if lease.suspect_nodes:
        lease.last_heartbeat_s = now_s
        ledger.leases[lease.id] = ledger.suspected[job_id] = lease
        ledger.block(lease)
