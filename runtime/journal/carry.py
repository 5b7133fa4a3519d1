"""The facts with which the next part of a journal begins while jobs are present.

Everything that a recovery reads is carried over: a run that continues from the next part continues as from a single long part.
What no recovery reads is left out, and that is nearly all: past phases, iterations and permits, and reports to the scheduler. The
progress of each job (`JobCarried`) remains of them.

The events of the cluster's state are carried over, so that the state, its accounts and its months are the same to the last bit.
Only `Progressed` is merged: it states totals, of which none but the last before another event is ever read.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import get_args

from rollmux_env.cluster.events import Event, JobProgress, Progressed, Ticked
from rollmux_env.garbage import without_collections
from rollmux_env.scheduler.facts import Confined, Drained, Joined, Undrained
from runtime.jobs.spec import JobSpec, RayJob
from runtime.journal.facts import (
    Assigned,
    CheckpointDelayed,
    Fact,
    IterationSlice,
    JobCarried,
    JobCheckpointed,
    JobProfiled,
    JobRestarted,
    JobRolledBack,
    LeaseEnded,
    MetricsReported,
    NodesFreed,
    NodesSuspected,
    OwnerAttached,
    PartBegun,
    PhaseGranted,
    PhaseSlice,
    Returned,
    RunEnded,
    RunRelaunched,
    SavedTurns,
    SchedulerInformed,
    SchedulerRestored,
    SharingBound,
    SoloIterationSlice,
    StateOffloaded,
    SyncSlice,
)
from runtime.journal.leases import RecalledLeases
from runtime.journal.record import RunRecord, cold_starts_of
from runtime.journal.write import record_of

_Numbered = Iterator[tuple[int, Fact]]  # facts by their position in the part
_SELECTED = (Assigned, Returned, OwnerAttached, PhaseGranted, LeaseEnded, NodesSuspected, NodesFreed)
_LEFT_OUT = (  # facts of all other kinds are carried over as they are
    *(PhaseSlice, SyncSlice, IterationSlice, SoloIterationSlice, StateOffloaded, SharingBound),
    *(JobCheckpointed, CheckpointDelayed, JobRestarted, JobRolledBack, MetricsReported),
    *(SchedulerRestored, RunEnded, JobCarried, PartBegun),
)
RULES = 6  # number of the rules below; it grows with each change to what they select
_EVENTS = frozenset(get_args(Event))
_ELSEWHERE = frozenset((*_EVENTS, *_SELECTED, *_LEFT_OUT))
_REPORTS = (Confined, Drained, Undrained, Joined)  # reports to the scheduler that a recovery reads


@without_collections()  # commits wait for this
def carried_facts(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts with which the part after a part begins. The last of them is `PartBegun`.

    Args:
        facts: Facts of the part.

    Raises:
        InputError: They are not the facts of a run.
    """
    record, leases = record_of(facts), RecalledLeases(facts)
    entries: dict[int, Fact] = {}
    for numbered in (
        select_events(facts),
        select_assignments(facts),
        _select_leases(facts, leases),
        _select_others(facts, record),
    ):
        entries.update(numbered)
    last_s = record.last_s
    nodes_by_job: defaultdict[str, list[str]] = defaultdict(list)
    for node, job_id in record.last_holders.items():
        nodes_by_job[job_id].append(node)
    specs = [fact.spec for fact in record.submitted]
    progress = [_summarize_job(record.by_job[spec.id], leases, spec, last_s, tuple(nodes_by_job[spec.id])) for spec in specs]
    return (*(entries[number] for number in sorted(entries)), *progress, PartBegun(last_s, RULES))


def count_carried(facts: Sequence[Fact]) -> int:
    """Return the number of facts at the beginning of a part that are carried over, with `PartBegun`; 0 for other parts."""
    return next((number for number, fact in enumerate(facts, 1) if isinstance(fact, PartBegun)), 0)


def select_events(facts: Sequence[Fact]) -> _Numbered:
    """Yield all events with their positions. Consecutive progress is merged, and the last time is kept."""
    progress: dict[str, JobProgress] = {}
    last: tuple[int, float] | None = None  # position and time of the last `Progressed` or `Ticked` since another event
    for number, fact in enumerate(facts):
        if isinstance(fact, Progressed | Ticked):
            last = number, fact.at_s
            progress |= {one.job_id: one for one in (fact.jobs if isinstance(fact, Progressed) else ())}
        elif type(fact) in _EVENTS:
            if progress and last is not None:
                yield last[0], Progressed(last[1], tuple(progress.values()))
            progress, last = {}, None
            yield number, fact
    if last is not None:
        yield last[0], Progressed(last[1], tuple(progress.values())) if progress else Ticked(last[1])


def select_assignments(facts: Sequence[Fact]) -> _Numbered:
    """Yield the assignments and returns of nodes of each group since it last had no node."""
    group_of: dict[str, int] = {}
    sizes: Counter[int] = Counter()  # numbers of nodes by group
    entries: defaultdict[int, dict[int, Fact]] = defaultdict(dict)
    for number, fact in enumerate(facts):
        left: list[int] = []  # a group for each node that has left it
        match fact:
            case Assigned(node=node, group=group):
                left += [group_of[node]] if node in group_of else []
                group_of[node] = group
                sizes[group] += 1
                entries[group][number] = fact
            case Returned(node=node) if node in group_of:
                left.append(group_of.pop(node))
                entries[left[0]][number] = fact
            case RunRelaunched(nodes=nodes):
                left += [group_of.pop(node) for node in group_of.keys() - {node.name for node in nodes}]
        sizes.subtract(left)
        for group in {*left}:
            if not sizes[group]:
                del entries[group]
    for of_group in entries.values():
        yield from of_group.items()


def _select_leases(facts: Sequence[Fact], leases: RecalledLeases) -> _Numbered:
    """Yield the facts of the last lease of each job and of other leases whose nodes may be in use, without phases that are over."""
    lease_ids = {lease.record.owner.lease for lease in leases.last.values()}
    lease_ids |= {lease_id for lease_id, lease in leases.by_id.items() if lease.is_in_use}
    attached: defaultdict[str, list[tuple[int, Fact]]] = defaultdict(list)
    for number, fact in enumerate(facts):
        match fact:
            case OwnerAttached(lease=lease_id) if lease_id in lease_ids:
                attached[lease_id].append((number, fact))
            case PhaseGranted(lease=lease_id) if lease_id in lease_ids:
                if leases.by_id[lease_id].grants.get(fact.phase) is fact:
                    yield number, fact
            case NodesSuspected(lease=lease_id) | NodesFreed(lease=lease_id) if lease_id in lease_ids:
                yield number, fact
            case LeaseEnded(lease=lease_id) if lease_id in lease_ids or fact.done:
                yield number, fact
    for entries in attached.values():  # the first one begins the lease, and the last one states its processes
        yield from (entries[0], entries[-1])


def _select_others(facts: Sequence[Fact], record: RunRecord) -> _Numbered:
    """Yield the reports to the scheduler that a recovery reads, the profiles of jobs, and what is carried over as it is."""
    cold_starts, last = cold_starts_of(record), {fact.job.id: fact for fact in record.profiled}
    for number, fact in enumerate(facts):
        match fact:
            case SchedulerInformed():
                if reports := tuple(one for one in fact.facts if isinstance(one, _REPORTS)):
                    yield number, dataclasses.replace(fact, facts=reports, permits=())
            case JobProfiled(job=job) if fact is last[job.id] and fact.provisional:
                yield number, dataclasses.replace(fact, provisional=cold_starts.provisional(job.id))
            case JobProfiled():
                yield number, fact
            case _ if type(fact) not in _ELSEWHERE:
                yield number, fact


def _summarize_job(own: RunRecord, leases: RecalledLeases, spec: JobSpec, last_s: float, last_held: tuple[str, ...]) -> JobCarried:
    """Return the progress of a job at the end of a part, from the job's own record, with the nodes that it held last."""
    lease = leases.last.get(spec.id)
    most = 2 * spec.checkpoint.keep if isinstance(spec, RayJob) else 0  # after a restart, the newest ones may be gone from the disk
    checkpoints = sorted(own.checkpoints_of(spec.id), reverse=True)[:most][::-1]
    progress = own.done[spec.id], own.most_done(spec.id), own.metrics.get(spec.id, {})
    checkpoint_s = own.checkpoint_s(spec.id)
    carried = JobCarried(last_s, spec.id, *progress, tuple(checkpoints), last_held=last_held, checkpoint_s=checkpoint_s)
    if lease is None:
        return carried
    known = lease.record
    turns, warm = SavedTurns(**known.turns.saved), frozenset(known.warm)
    return dataclasses.replace(carried, turns=turns, warm=warm, began_s=lease.began_s, reported=known.metrics, busy_s=lease.busy_s)
