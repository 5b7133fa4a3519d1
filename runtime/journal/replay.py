"""Replay of a recorded run through the scheduler, which must decide as it did.

The scheduler gets the same reports at the same times. Its placements and moves, nodes, and order of permits are compared with those
in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from policies.dispatch import make_dispatch
from policies.registry import make_runnable, observed_state
from rollmux_env.cluster.events import Admitted, Moved, Parked
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError, PlanError
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.scheduler.commands import Grant
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.nodes import Assigned, NodePool, Returned
from rollmux_env.scheduler.view import GroupView, WaitingPhase
from runtime.journal.carry import count_carried
from runtime.journal.facts import Fact, SchedulerInformed, SchedulerRestored
from runtime.journal.record import RunRecord
from runtime.journal.write import record_of, state_of
from runtime.machine import Node


@dataclass(frozen=True)
class Differences:
    """Differences between the recorded and the replayed decisions.

    Attributes:
        placements: Number of compared placements, moves and parks.
        nodes: Number of compared assignments and returns of nodes.
        permits: Number of compared permits.
        lines: One line for each difference.
    """

    placements: int
    nodes: int
    permits: int
    lines: tuple[str, ...]


def _decisions(entries: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the decisions in order, each with its kind, named as in `Differences`, and a description."""
    for entry in entries:
        match entry:
            case Admitted(job_id=job_id, placement=placement) | Moved(job_id=job_id, placement=placement):
                yield "placements", f"{type(entry).__name__.lower()} {job_id}: {placement}"
            case Parked(job_id=job_id, for_job=for_job):
                yield "placements", f"parked {job_id} for {for_job}"
            case Assigned():
                yield "nodes", f"{entry.node} to {entry.pool} {entry.number} of group {entry.group}"
            case Returned():
                yield "nodes", f"{entry.node} returned"
            case SchedulerInformed(permits=permits):
                yield from (("permits", f"{phase} of {job_id}") for job_id, phase in permits)
            case Grant(job_id=job_id, phase=phase):
                yield "permits", f"{phase} of {job_id}"


class _Repeated:
    """Repeats the recorded choices of a driver's rule for lent nodes, because journals do not contain such rules.

    Attributes:
        permits: Permits that were granted in this instant.
    """

    permits: Sequence[tuple[str, str]] = ()

    def choose(self, group: GroupView) -> WaitingPhase | None:
        """Return the waiting phase that got a permit next."""
        waiting = {(one.member.job_id, one.phase): one for one in group.waiting}
        return next((waiting[permit] for permit in self.permits if permit in waiting), None)

    def put_into(self, fact: scheduler_facts.Fact) -> scheduler_facts.Fact:
        """Return a fact with this object in place of its rule, if it has one."""
        return fact._replace(rule=self) if isinstance(fact, scheduler_facts.Unprofiled) and fact.rule else fact


def replay_journal(facts: Sequence[Fact], begins: int = 0) -> Differences:
    """Replay a run's facts, in the order of its journal, through a scheduler.

    A part that continues another one does not say what its scheduler knew. It is replayed from the first resumption on.

    Args:
        facts: The facts of the run, all of them.
        begins: Number of facts before the first one that is replayed and compared: none, or those before a resumption.

    Raises:
        InputError: They are not the facts of a run, or an event is impossible.
    """
    record = record_of(facts)
    state_of(record)
    if count_carried(facts) and not begins:
        begins = next((number for number, fact in enumerate(facts) if isinstance(fact, SchedulerRestored)), len(facts))
    replayed: list[tuple[str, str]] = []
    lines, original = _feed(facts, begins, record, replayed), [*_decisions(facts[begins:])]
    counts: dict[str, int] = {}
    for what in ("placements", "nodes", "permits"):
        before, after = ([words for kind, words in both if kind == what] for both in (original, replayed))
        counts[what] = len(before)
        lines += _compared(what, before, after)
    return Differences(**counts, lines=tuple(lines))


def assigned_nodes(record: RunRecord, nodes: Iterable[Node]) -> NodePool:
    """Assign nodes as in a recorded run, if they are available by name now and were at every resumption."""
    pool, begun = NodePool(nodes), [(again.at_s, {node.name for node in again.nodes}) for again in record.relaunched]
    entries = (entry for entry in record.assigned if all(entry.at_s > at_s or entry.node in there for at_s, there in begun))
    pool.restore(entries, record.last_holders)
    pool.drained |= record.drained_nodes
    return pool


def restore(scheduler: Scheduler, record: RunRecord, restored: SchedulerRestored) -> list[str]:
    """Restore the knowledge of the run before in the scheduler of a resumed run.

    Args:
        scheduler: Scheduler of the resumed run.
        record: Record of the run so far.
        restored: Fact that says so.

    Returns:
        Ids of the jobs that have lost their placements, as returned by `Scheduler.restore`.
    """
    scheduler.record(scheduler_facts.Alone(exceeded.job_id) for exceeded in record.memory_exceeded)
    scheduler.record(confined for _, confined in record.reports_of(scheduler_facts.Confined))
    for fact in record.submitted:
        if phases := fact.spec.estimated_phases:
            scheduler.record([scheduler_facts.Estimated(fact.spec.id, phases)])
    return scheduler.restore(restored.at_s, record.cluster, restored.gone, restored.staying)


def _feed(facts: Sequence[Fact], begins: int, record: RunRecord, did: list[tuple[str, str]]) -> list[str]:
    """Let a scheduler decide about the reports of a run from a fact on, and append its decisions to `did`. Return its errors."""
    scheduler = _scheduler(record, observed_state(record.started.policy, record.started.cluster), NodePool(record.started.nodes))
    rule = _Repeated()
    for number, fact in enumerate(facts[begins:], begins):
        if not isinstance(fact, SchedulerInformed | SchedulerRestored):
            continue
        try:
            if isinstance(fact, SchedulerRestored):
                past = record_of(facts[:number])
                scheduler = _scheduler(record, state_of(past), assigned_nodes(past, past.relaunched[-1].nodes))
                restore(scheduler, past, fact)
                did += _decisions(scheduler.take_entries())
            else:
                rule.permits, scheduler.members.stopped = fact.permits, fact.stopped
                step = scheduler.step(fact.at_s, map(rule.put_into, fact.facts))
                did += _decisions([*step.entries, *step.commands])
        except (ValueError, KeyError, PlanError, InvariantError) as error:
            return [f"at {fact.at_s:.3f} s: {type(error).__name__}: {error}"]
    return []


def _scheduler(record: RunRecord, state: State, nodes: NodePool) -> Scheduler:
    start = record.started
    watches = any(fact.at_s > 0 or fact.spec.shapes for fact in record.submitted)  # a service, or a run with shapes

    def make_policy() -> Any:
        return make_runnable(start.policy, start.seed)

    return Scheduler(state, make_policy(), make_dispatch(start.dispatch), nodes, make_policy if watches else None)


def joined(parts: Sequence[Sequence[Fact]]) -> list[list[Fact]]:
    """Return the facts of parts, oldest first, each part that continues another one together with that one."""
    every: list[list[Fact]] = []
    for facts in parts:
        if every and (carried := count_carried(facts)):
            every[-1] += facts[carried:]
        else:
            every.append([*facts])
    return every


def _compared(what: str, original: list[str], replayed: list[str]) -> list[str]:
    lines = []
    for kind, a, b, c, d in SequenceMatcher(None, original, replayed, autojunk=False).get_opcodes():
        if kind != "equal":
            lines.append(f"{what} {a + 1}: recorded {original[a:b] or 'nothing'}, now {replayed[c:d] or 'nothing'}")
    return lines
