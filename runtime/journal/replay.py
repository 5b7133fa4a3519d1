"""A recorded run, fed through the scheduler once more: it must decide as it did.

What jobs did is read from the journal: when they came, asked for permits, ended phases and iterations, failed and left. What the
scheduler makes of it is held against what the journal says: placements and moves, nodes, and the order of permits. The journal does
not say everything: permits on lent nodes and in runs whose tails were migrated are left out, and a request that got no permit
before its job died is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from policies.dispatch import make_dispatch
from policies.registry import make_runnable, observed_state
from rollmux_env.cluster.events import Admitted, Moved
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InvariantError, PlanError
from rollmux_env.scheduler import facts as core_facts
from rollmux_env.scheduler.commands import Grant
from rollmux_env.scheduler.core import Scheduler, Step
from rollmux_env.scheduler.nodes import LEASE, Assigned, NodePool, Returned
from runtime.jobs.shapes import estimated_phases
from runtime.journal.facts import Fact, Relaunched
from runtime.journal.record import RunRecord
from runtime.journal.timeline import Instant, Timeline, own_permits, permit_phase
from runtime.journal.write import record_of, state_of

_OF_SEATS = (
    *(core_facts.Ready, core_facts.Finished, core_facts.Sampled, core_facts.Synced, core_facts.Absent, core_facts.Continued),
)


@dataclass(frozen=True)
class Differences:
    """What the scheduler did otherwise.

    Attributes:
        placements, nodes, permits: how many were compared. lines: one for each difference.
    """

    placements: int
    nodes: int
    permits: int
    lines: tuple[str, ...]


@dataclass
class _Decisions:
    """What was decided, in order."""

    placements: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    permits: list[str] = field(default_factory=list)

    def add(self, entries: Iterable[Any]) -> None:
        for entry in entries:
            match entry:
                case Admitted(job_id=job_id, placement=placement) | Moved(job_id=job_id, placement=placement):
                    self.placements.append(f"{type(entry).__name__.lower()} {job_id}: {placement}")
                case Assigned():
                    self.nodes.append(f"{entry.node} to {entry.pool} {entry.number} of group {entry.group}")
                case Returned():
                    self.nodes.append(f"{entry.node} returned")


def replay_journal(facts: Sequence[Fact]) -> Differences:
    """Feed a run's facts, in the order of its journal, through a scheduler.

    Raises:
        InputError: they are no run's, or an event cannot have happened; one line.
    """
    record = record_of(facts)
    state_of(record)
    compares = not any(part.spans for part in record.phases)
    original, replayed = _Decisions(), _Decisions()
    original.add(facts)
    slices = [part for part in own_permits(record.phases) if part.group != LEASE] if compares else []
    original.permits = [f"{permit_phase(part)} of {part.job_id}" for part in sorted(slices, key=lambda part: part.start_s)]
    lines = _feed(facts, record, Timeline(facts, record).instants(), replayed)
    if not compares:
        replayed.permits.clear()
    for what in ("placements", "nodes", "permits"):
        lines += _compared(what, getattr(original, what), getattr(replayed, what))
    return Differences(len(original.placements), len(original.nodes), len(original.permits), tuple(lines))


def _feed(facts: Sequence[Fact], record: RunRecord, instants: list[Instant], did: _Decisions) -> list[str]:
    """Let a scheduler decide; returns what it refuses."""
    scheduler = _scheduler(record, observed_state(record.started.policy, record.started.cluster), NodePool(record.started.nodes))
    now_s = 0.0
    for instant in instants:
        now_s = max(now_s, instant.at_s)
        try:
            if instant.relaunch >= 0:
                scheduler = _relaunched(facts, record, instant.relaunch, now_s)
            step: Step = scheduler.step(now_s, [fact for fact in instant.facts if _concerns(scheduler, fact)])
        except (ValueError, KeyError, PlanError, InvariantError) as error:
            return [f"at {now_s:.3f} s: {type(error).__name__}: {error}"]
        did.add(step.entries)
        for command in step.commands:
            if isinstance(command, Grant) and command.phase != "sync" and scheduler.seats[command.job_id].group.number != LEASE:
                did.permits.append(f"{command.phase} of {command.job_id}")
    return []


def _concerns(scheduler: Scheduler, fact: core_facts.Fact) -> bool:
    """Whether the scheduler was told: not of what a job does that has no seat."""
    return not isinstance(fact, _OF_SEATS) or fact.job_id in scheduler.seats


def _scheduler(record: RunRecord, state: State, nodes: NodePool) -> Scheduler:
    start = record.started
    watches = any(fact.at_s > 0 or fact.spec.shapes for fact in record.submitted)  # a service, or a run with shapes

    def make_policy() -> Any:
        return make_runnable(start.policy, start.seed)

    scheduler = Scheduler(state, make_policy(), make_dispatch(start.dispatch), nodes, make_policy if watches else None)
    for spec in (fact.spec for fact in record.submitted):
        if phases := estimated_phases(spec):
            scheduler.estimated(spec.id, phases)
    return scheduler


def _relaunched(facts: Sequence[Fact], record: RunRecord, number: int, now_s: float) -> Scheduler:
    """The scheduler of a run that goes on, as its journal was then."""
    before = facts[:number]
    relaunch = facts[number]
    assert isinstance(relaunch, Relaunched)
    past = record_of(before)
    state, nodes = observed_state(record.started.policy, record.started.cluster), NodePool(relaunch.nodes)
    for event in past.log:
        apply(state, event)
    nodes.restore(fact for fact in before if isinstance(fact, Assigned | Returned))
    nodes.drained |= past.drained_nodes
    over = {fact.job_id for fact in past.failed} | {fact.job_id for fact in past.cancelled} | past.over_budget
    over |= {fact.job_id for fact in past.leases_ended if fact.done}
    for spec in (fact.spec for fact in past.submitted):
        if sum(done.job_id == spec.id for done in past.iterations) == spec.iterations:
            over.add(spec.id)
    scheduler = _scheduler(record, state, nodes)
    for exceeded in past.exceeded:
        scheduler.alone(exceeded.job_id)
    for confined in past.confined:
        scheduler.confined(confined.job_id, frozenset(confined.nodes))
    scheduler.restore(now_s, past.cluster, over)
    return scheduler


def _compared(what: str, original: list[str], replayed: list[str]) -> list[str]:
    lines = []
    for kind, a, b, c, d in SequenceMatcher(None, original, replayed, autojunk=False).get_opcodes():
        if kind != "equal":
            lines.append(f"{what} {a + 1}: recorded {original[a:b] or 'nothing'}, now {replayed[c:d] or 'nothing'}")
    return lines
