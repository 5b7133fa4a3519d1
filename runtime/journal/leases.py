"""The leases of owners according to a journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollmux_protocol import Turn, Turns

from rollmux_env.keys.cluster import SIDES
from rollmux_env.scheduler.view import HoldName
from runtime.journal.facts import (
    Fact,
    IterationSlice,
    JobCarried,
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
        return bool(self.suspects) or (bool(self.grants) and self.end is None)

    def grant(self, fact: PhaseGranted) -> None:
        """Record that the owner has been granted a phase."""
        self.grants[fact.phase] = fact
        self.turns.restore_grant(Turn(fact.phase, fact.iteration, fact.extra))

    def finish(self, part: PhaseSlice) -> None:
        """Record the end of a phase. A phase that was interrupted does not count."""
        turn = Turn(part.phase, self.turns.begins if part.phase == "init" else part.iteration, part.extra and part.phase != "init")
        if part.ok:
            self.warm |= {*SIDES} if part.phase == "init" else {part.phase}
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
        by_id: All leases, by id.
        counted: Number of iterations that count of each job that has had a lease.
    """

    def __init__(self, journal: Iterable[Fact]) -> None:
        self.last: dict[str, RecalledLease] = {}
        self.by_id: dict[str, RecalledLease] = {}
        self._of_job: defaultdict[str, list[RecalledLease]] = defaultdict(list)
        self.counted: Counter[str] = Counter()
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
            case OwnerAttached(lease=lease_id) if lease_id in self.by_id:
                self.by_id[lease_id].owner = fact
            case OwnerAttached(job_id=job_id):
                lease = RecalledLease(fact, Turns(*self._limits[job_id], self.counted[job_id]))
                self.last[job_id] = self.by_id[fact.lease] = lease
                self._of_job[job_id].append(lease)
            case PhaseGranted(lease=lease_id):
                self.by_id[lease_id].grant(fact)
            case LeaseEnded(lease=lease_id) if lease_id in self.by_id:
                self.by_id[lease_id].end = fact
            case NodesSuspected(lease=lease_id):
                self.by_id[lease_id].suspects |= {*fact.nodes}
            case NodesFreed(lease=lease_id):
                self.by_id[lease_id].suspects -= {*fact.nodes}
            case PhaseSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].finish(fact)
            case SyncSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].sync(fact)
            case IterationSlice(job_id=job_id) if job_id in self.last:
                self.counted[job_id] = self.last[job_id].turns.done = fact.number + 1
            case JobCarried(job_id=job_id, turns=turns):
                if turns is not None:
                    self.counted[job_id], lease = fact.iterations, self.last[job_id]
                    lease.turns.restore(vars(turns))
                    lease.warm = {*fact.warm}
            case JobRolledBack(job_id=job_id):
                self.counted[job_id] = fact.iteration
                self.last[job_id].turns.go_back(fact.iteration)
