"""The leases of owners according to a journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollmux_protocol import Turn, Turns

from rollmux_env.cluster.events import Arrived, Progressed
from rollmux_env.keys.cluster import SIDES
from rollmux_env.scheduler.view import HoldName
from runtime.journal.facts import (
    Fact,
    IterationSlice,
    JobCarried,
    JobRolledBack,
    JobSubmitted,
    LeaseEnded,
    MetricsReported,
    NodesFreed,
    NodesSuspected,
    OwnerAttached,
    PhaseGranted,
    PhaseSlice,
    SyncSlice,
)
from runtime.machine import Pool

LeaseFact = OwnerAttached | MetricsReported | JobRolledBack | NodesSuspected | NodesFreed | LeaseEnded
"""Facts of a lease beside its phases."""


@dataclass
class LeaseRecord:
    """State of a lease that a journal keeps.

    A service lets it follow the facts that it writes, and recall those that it reads.

    Attributes:
        owner: Owner in its last recorded state, with the names of its nodes.
        turns: Progress of the owner, and the phases that it has asked for or been granted.
        warm: Phases that the owner has run before.
        metrics: Metrics of iterations that are not over, by number of the iteration.
        suspects: Names of the nodes that the lease held when it was lost and that may still be in use.
        end: Fact that ended the lease, or None while it is active.
    """

    owner: OwnerAttached
    turns: Turns
    warm: set[str] = field(default_factory=set)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    suspects: set[str] = field(default_factory=set)
    end: LeaseEnded | None = None

    def follow(self, fact: LeaseFact) -> None:
        """Change the state as a fact of the lease says."""
        match fact:
            case OwnerAttached():
                self.owner = fact
            case MetricsReported():
                self.metrics[fact.iteration] = dict(fact.metrics)
            case JobRolledBack():
                self.turns.go_back(fact.iteration)
            case NodesSuspected():
                self.suspects |= {*fact.nodes}
            case NodesFreed():
                self.suspects -= {*fact.nodes}
            case LeaseEnded() if self.end is None:  # its owner may report later that the job is done
                self.end = fact

    def warm_up(self, phase: HoldName) -> None:
        """Record that the owner has run a phase. An `init` warms up both pools."""
        self.warm |= {*SIDES} if phase == "init" else {phase}

    def iterate(self, number: int) -> None:
        """Record that an iteration is over."""
        self.turns.done = number + 1
        self.metrics.pop(number, None)


@dataclass
class RecalledLease:
    """A lease according to a journal, with the phases that the journal records.

    Attributes:
        record: State of the lease.
        grants: Facts of the phases that the owner holds, by phase.
        began_s: Times at which the rollouts of iterations that are not over were ready, by number of the iteration.
        busy_s: Node-seconds of its phases since the last progress of its job in the cluster's state, by pool.
    """

    record: LeaseRecord
    grants: dict[HoldName, PhaseGranted] = field(default_factory=dict)
    began_s: dict[int, float] = field(default_factory=dict)
    busy_s: dict[Pool, float] = field(default_factory=dict)

    @property
    def is_in_use(self) -> bool:
        """Whether the owner may be using nodes."""
        return bool(self.record.suspects) or (bool(self.grants) and self.record.end is None)

    def grant(self, fact: PhaseGranted) -> None:
        """Record that the owner has been granted a phase."""
        self.grants[fact.phase] = fact
        if fact.phase == "rollout" and not fact.extra:
            self.began_s[fact.iteration] = fact.asked_s
        self.record.turns.restore_grant(Turn(fact.phase, fact.iteration, fact.extra))

    def finish(self, part: PhaseSlice) -> None:
        """Record the end of a phase. A phase that was interrupted does not count."""
        turns = self.record.turns
        turn = Turn(part.phase, turns.begins if part.phase == "init" else part.iteration, part.extra and part.phase != "init")
        if part.ok:
            self.record.warm_up(part.phase)
            turns.restore_grant(turn)
            turns.release(turn.phase)
            if part.phase != "init":
                self.busy_s[part.pool] = self.busy_s.get(part.pool, 0.0) + part.busy_s
        else:
            turns.drop(turn.phase)
        self.grants.pop(turn.phase, None)

    def sync(self, part: SyncSlice) -> None:
        """Record the end of a sync, whether or not its owner held all nodes for it."""
        if part.asked_s is not None:
            self.record.warm_up("sync")
        self.record.turns.restore_grant(Turn("sync", part.iteration))
        self.record.turns.release("sync")
        self.grants.pop("sync", None)

    def iterate(self, done: IterationSlice) -> None:
        """Record that an iteration is over."""
        self.record.iterate(done.number)
        self.began_s.pop(done.number, None)

    def carry_over(self, carried: JobCarried) -> None:
        """Continue with the owner's progress at the end of the part before."""
        record = self.record
        if carried.turns is not None:
            record.turns.restore(vars(carried.turns))
        record.warm, self.began_s, self.busy_s = {*carried.warm}, dict(carried.began_s), dict(carried.busy_s)
        record.metrics = {number: dict(metrics) for number, metrics in carried.reported.items()}


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
            case OwnerAttached(job_id=job_id) if fact.lease not in self.by_id:
                lease = RecalledLease(LeaseRecord(fact, Turns(*self._limits[job_id], self.counted[job_id])))
                self.last[job_id] = self.by_id[fact.lease] = lease
                self._of_job[job_id].append(lease)
            case OwnerAttached() | NodesSuspected() | NodesFreed():
                self.by_id[fact.lease].record.follow(fact)
            case LeaseEnded() if fact.lease in self.by_id:
                self.by_id[fact.lease].record.follow(fact)
            case PhaseGranted():
                self.by_id[fact.lease].grant(fact)
            case JobCarried(job_id=job_id, turns=turns):
                if turns is not None:
                    self.counted[job_id] = fact.iterations
                    self.last[job_id].carry_over(fact)
            case MetricsReported(job_id=job_id) | JobRolledBack(job_id=job_id):
                if isinstance(fact, JobRolledBack):
                    self.counted[job_id] = fact.iteration
                self.last[job_id].record.follow(fact)
            case _:
                self._follow_work(fact)

    def _follow_work(self, fact: Fact) -> None:
        """Follow what the owners of leases have done."""
        match fact:
            case PhaseSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].finish(fact)
            case SyncSlice(job_id=job_id) if job_id in self.last:
                self.last[job_id].sync(fact)
            case IterationSlice(job_id=job_id) if job_id in self.last:
                self.counted[job_id] = fact.number + 1
                self.last[job_id].iterate(fact)
            case Progressed(jobs=jobs):
                for one in jobs:
                    if one.job_id in self.last:
                        self.last[one.job_id].busy_s.clear()
            case Arrived(job=job) if job.id in self.last:
                self.last[job.id].busy_s.clear()
