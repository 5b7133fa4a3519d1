"""What happened in a recorded run, as facts for a scheduler, by time.

The journal has phases, iterations and what the scheduler decided; here they become again what was reported to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    Moved,
    OverBudget,
    Progress,
    Reprofiled,
    Requeued,
    Resized,
    Resumed,
    Warm,
    Withdrawn,
)
from rollmux_env.scheduler import facts as core_facts
from rollmux_env.scheduler.core import Entry
from rollmux_env.scheduler.nodes import LEASE, Assigned, Returned
from runtime.jobs.shapes import estimated_phases
from runtime.jobs.spec import JobSpec, nodes_asked
from runtime.journal.cold_starts import ColdStarts
from runtime.journal.facts import (
    Absent,
    Attached,
    Checkpointed,
    Confined,
    Continued,
    Drained,
    Exceeded,
    Fact,
    Failed,
    Freed,
    Granted,
    Iteration,
    Joined,
    LeaseEnded,
    PhaseSlice,
    Relaunched,
    Restarted,
    Suspected,
    Undrained,
)
from runtime.journal.guests import batches, busy_s, visits
from runtime.journal.record import RunRecord

_NOBODY = "nobody knows who"  # in place of a job's id
_OF_LEASES = (Attached, Granted, LeaseEnded, Suspected, Freed, Continued)


@dataclass
class Instant:
    """Facts of one instant."""

    at_s: float
    facts: list[core_facts.Fact]
    relaunch: int = -1  # number of the fact in the journal, where the run goes on here


class Timeline:
    """What happened to jobs, by time."""

    def __init__(self, facts: Sequence[Fact], record: RunRecord) -> None:
        self._facts = facts
        self._record = record
        self._specs: dict[str, JobSpec] = {fact.spec.id: fact.spec for fact in record.submitted}
        self._arrived: dict[str, int] = {}  # iterations that a job had to do when it arrived
        self._done: dict[str, int] = {}  # that it has done
        self._busy: dict[str, dict[str, float]] = {}
        self._guests: set[str] = set()  # on lent nodes
        self._lent: set[str] = set()

    def instants(self) -> list[Instant]:
        """In order; of one time, in the order of the journal."""
        instants = self._phases()
        number, restores = 0, False
        while number < len(self._facts):
            fact = self._facts[number]
            if isinstance(fact, Iteration) and fact.job_id not in self._arrived and self._specs[fact.job_id].profile is not None:
                pass  # of a guest: the scheduler was not told
            elif isinstance(fact, Iteration):
                instants.append(self._iterated(number, fact))
            elif isinstance(fact, Absent):
                instants.append(Instant(fact.at_s, [core_facts.Absent(fact.job_id)]))
            elif isinstance(fact, Drained):
                instants.append(Instant(fact.at_s, [core_facts.Drained(frozenset({fact.node}))]))
            elif isinstance(fact, Undrained):
                instants.append(Instant(fact.at_s, [core_facts.Undrained(frozenset({fact.node}))]))
            elif isinstance(fact, Joined):
                instants.append(Instant(fact.at_s, [core_facts.Joined(fact.nodes)]))
            elif isinstance(fact, Confined):
                instants.append(Instant(fact.at_s, [core_facts.Confined(fact.job_id, frozenset(fact.nodes))]))
            elif isinstance(fact, Exceeded):
                instants.append(Instant(fact.at_s, [core_facts.Alone(fact.job_id)]))
            elif isinstance(fact, Continued):
                instants.append(self._continued(fact))
            elif isinstance(fact, Restarted):
                self._done[fact.job_id] = fact.iteration
                self._busy.pop(fact.job_id, None)
            elif isinstance(fact, PhaseSlice) and fact.ok and not fact.profile:
                busy = self._busy.setdefault(fact.job_id, {"rollout": 0.0, "training": 0.0})
                busy[fact.pool] += busy_s(fact) if fact.phase != "init" else 0.0
            elif isinstance(fact, Relaunched):
                instants.append(Instant(fact.at_s, [], number))
                restores = True
                self._guests, self._lent = set(), set()  # whoever goes on knows nothing of them
            elif isinstance(fact, Entry):
                last = self._group(number)
                entries = self._facts[number : last + 1]
                begins = any(isinstance(entry, Arrived | Admitted | Moved) for entry in entries)
                restores &= not begins and not any(isinstance(entry, Assigned) and entry.group == LEASE for entry in entries)
                if not restores:  # else it follows from going on
                    instants.append(Instant(fact.at_s, self._happened(entries)))
                number = last
            restores &= isinstance(fact, Entry | Relaunched | Restarted | Failed | Continued | Confined)
            number += 1
        instants += self._stop()
        return sorted(instants, key=lambda instant: instant.at_s)

    def _stop(self) -> list[Instant]:
        """A run that was stopped gives no permits and asks no policy, after the last ones that it did."""
        if self._record.ended is None or self._record.ended.outcome != "stopped":
            return []
        last_s = [part.start_s for part in self._record.phases] + [
            event.at_s for event in self._record.log if isinstance(event, Admitted)
        ]
        last_s += [sync.start_s for sync in self._record.syncs if sync.asked_s is not None]
        return [Instant(max(last_s, default=0.0), [core_facts.Stop()])]

    def _phases(self) -> list[Instant]:
        guests = visits(self._record)
        instants = [Instant(batch[0].from_s, [self._unprofiled([visit.job_id for visit in batch])]) for batch in batches(guests)]
        cold_starts = ColdStarts()
        for fact in self._record.profiled:
            cold_starts.profiled(fact)
        asked = (part for part in own_permits(self._record.phases) if part.group != LEASE)
        instants += [Instant(part.asked_s, [core_facts.Ready(part.job_id, permit_phase(part))]) for part in asked]  # type: ignore[arg-type]
        for part in self._record.phases:
            if part.group != LEASE and part.ok and (part.phase != "init" or part.extra):
                seconds = part.done_s - part.run_s
                device_gb = 0.0 if part.stays else part.device_gb
                phase, cold_s = permit_phase(part), cold_starts.observed(part, self._specs[part.job_id])
                finished = core_facts.Finished(part.job_id, phase, seconds, part.cold, not part.extra, device_gb, cold_s)  # type: ignore[arg-type]
                instants.append(Instant(part.end_s, [finished, *self._sampled(part)]))
        for sync in self._record.syncs:
            if sync.asked_s is not None:
                instants.append(Instant(sync.asked_s, [core_facts.Ready(sync.job_id, "sync")]))
                instants.append(Instant(sync.end_s, [core_facts.Finished(sync.job_id, "sync", sync.end_s - sync.start_s)]))
            if not sync.profile:
                instants.append(Instant(sync.end_s, [core_facts.Synced(sync.job_id, sync.end_s - sync.start_s)]))
        for visit in guests:
            if visit.failed_s is None:
                instants.append(Instant(visit.until_s, [core_facts.Profiled(visit.job_id)]))
            else:
                instants.append(Instant(visit.failed_s, [core_facts.Failed(visit.job_id)]))
                instants.append(Instant(visit.until_s, [core_facts.Cleared(visit.job_id)]))
        return [instant for instant in instants if instant.at_s < inf]

    def _sampled(self, part: PhaseSlice) -> list[core_facts.Sampled]:
        """What is told of a phase that is the last rollout of a stale job."""
        spec = self._specs[part.job_id]
        is_last = part.phase == "rollout" and not part.profile and not part.extra and part.iteration + 1 == spec.iterations
        return [core_facts.Sampled(spec.id)] if spec.staleness and is_last else []

    def _continued(self, fact: Continued) -> Instant:
        """A job goes on with what it had in hand; of a stale one that may be the last rollouts."""
        spec, continued = self._specs[fact.job_id], core_facts.Continued(fact.job_id, fact.phase, fact.runs, fact.sampled)
        news: list[core_facts.Fact] = [continued] if fact.sampled != 0 or fact.runs else []
        if spec.staleness and fact.sampled and self._done.get(spec.id, 0) + fact.sampled == spec.iterations:
            news.append(core_facts.Sampled(spec.id))
        return Instant(fact.at_s, news)

    def _unprofiled(self, job_ids: Iterable[str], names: frozenset[str] = frozenset()) -> core_facts.Unprofiled:
        specs, pools = [self._specs[job_id] for job_id in job_ids], self._record.started.cluster.sides
        return core_facts.Unprofiled({spec.id: nodes_asked(spec, pools) for spec in specs}, None, names)

    def _group(self, number: int) -> int:
        """The last entry of a step, which begins with this one."""
        at_s = self._facts[number].at_s  # type: ignore[union-attr]
        while number + 1 < len(self._facts):
            following = self._facts[number + 1]
            if not isinstance(following, Entry) or following.at_s != at_s:
                break
            number += 1
        return number

    def _iterated(self, number: int, done: Iteration) -> Instant:
        """An iteration is over; whatever of the same step concerns the job comes with it."""
        job_id = done.job_id
        self._done[job_id] = done.number + 1
        before = self._specs[job_id].iterations - self._arrived.get(job_id, self._specs[job_id].iterations)
        busy = self._busy.get(job_id, {"rollout": 0.0, "training": 0.0})
        progress = Progress(job_id, max(0, done.number + 1 - before), busy["rollout"], busy["training"])
        behind = number + 1
        while behind < len(self._facts) and not isinstance(self._facts[behind], (Entry, Iteration, PhaseSlice, *_OF_LEASES)):
            fact = self._facts[behind]
            if isinstance(fact, Checkpointed) and fact.job_id == job_id and fact.at_s > done.end_s:
                break  # it was written afterwards, and what follows was another step
            behind += 1
        entries: Sequence[Any] = ()
        if behind < len(self._facts) and isinstance(self._facts[behind], Entry):
            entries = self._facts[behind : self._group(behind) + 1]
        stays = any(isinstance(e, Reprofiled) and e.job.id == job_id and not e.job.movable for e in entries)
        mine = any(isinstance(e, Departed | Resumed) and e.job_id == job_id for e in entries)
        at_s = entries[0].at_s if mine else done.end_s
        seconds = None if done.interrupted else done.end_s - done.start_s
        return Instant(at_s, [core_facts.Iterated(progress, seconds, not stays)])

    def _happened(self, entries: Sequence[Any]) -> list[core_facts.Fact]:
        """The facts behind the journal entries of a step."""
        facts: list[core_facts.Fact] = []
        alive = {entry.job_id: frozenset(entry.nodes) for entry in entries if isinstance(entry, Warm)}
        departures = {entry.job_id for entry in entries if isinstance(entry, Departed)}
        lease = {entry.node for entry in entries if isinstance(entry, Assigned) and entry.group == LEASE}
        if self._lent & {entry.node for entry in entries if isinstance(entry, Returned)}:
            facts += [core_facts.Profiled(job_id) for job_id in sorted(self._guests)]
            self._guests, self._lent = set(), set()
        for entry in entries:
            match entry:
                case Arrived(job=job):
                    self._arrived[job.id] = job.iterations or 0
                    if phases := estimated_phases(self._specs[job.id]):
                        facts.append(core_facts.Estimated(job.id, phases))
                    facts.append(core_facts.Arrived(job, isinstance(entry, Requeued), alive.get(job.id, frozenset())))
                case Resumed(job_id=job_id) if job_id not in departures:
                    facts += [core_facts.Vacated(job_id), core_facts.Resumed(job_id)]
                case OverBudget(job_id=job_id):
                    facts.append(core_facts.Left(job_id, over_budget=True))
                case Departed(job_id=job_id):
                    whole = self._done.get(job_id) == self._specs[job_id].iterations
                    facts += [core_facts.Left(job_id)] if whole else [core_facts.Failed(job_id), core_facts.Cleared(job_id)]
                case Withdrawn(job_id=job_id):
                    facts.append(core_facts.Failed(job_id))
                case Resized() if lost := self._lost(entries, entry.at_s):
                    facts.insert(0, core_facts.Lost(lost))
        if lease:
            self._lent, self._guests = lease, self._on_lent(lease, entries[0].at_s)
            if self._guests:
                names = frozenset(lease if self._are_over(self._guests) else ())  # they are measured alone where they were
                facts.append(self._unprofiled(sorted(self._guests, key=[*self._specs].index), names))
            else:  # none of them has run a phase
                pools = Counter(entry.pool for entry in entries if isinstance(entry, Assigned) and entry.group == LEASE)
                names = frozenset(lease if self._arrived and self._are_over(self._arrived) else ())
                self._guests = {_NOBODY}
                facts.append(core_facts.Unprofiled({_NOBODY: pools}, None, names))
        return facts

    def _are_over(self, job_ids: Iterable[str]) -> bool:
        return all(self._done.get(job_id) == self._specs[job_id].iterations for job_id in job_ids)

    def _on_lent(self, nodes: set[str], from_s: float) -> set[str]:
        """The jobs that were profiled on nodes that are lent from a time on."""
        returned = (fact.at_s for fact in self._record.returned if fact.node in nodes and fact.at_s > from_s)
        until_s = min(returned, default=inf)
        parts = (part for part in self._record.phases if part.group == LEASE)
        return {part.job_id for part in parts if from_s <= part.start_s < until_s}

    def _lost(self, entries: Sequence[Any], at_s: float) -> frozenset[str]:
        """The nodes that were returned and never seen again; none where a drained one is among them, which is what has changed."""
        returned = {entry.node for entry in entries if isinstance(entry, Returned)}
        if returned & {fact.node for fact in self._record.drained if fact.at_s <= at_s}:
            return frozenset()
        return frozenset(returned - {fact.node for fact in self._facts if isinstance(fact, Assigned) and fact.at_s >= at_s})


def permit_phase(part: PhaseSlice) -> str:
    """The phase whose permit it had."""
    return "rollout" if part.phase == "init" else part.phase


def own_permits(parts: Sequence[PhaseSlice]) -> list[PhaseSlice]:
    """The phases that began with a permit of their own; making a job shares that of the rollout that follows."""
    initialised: set[str] = set()
    permits = []
    for part in parts:
        if part.phase == "rollout" and part.job_id in initialised and part.ok:
            initialised.discard(part.job_id)
            continue
        permits.append(part)
        initialised.discard(part.job_id)
        if part.phase == "init" and part.ok and not part.extra:
            initialised.add(part.job_id)
    return permits
