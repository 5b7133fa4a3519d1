"""Audit of a journal: whether it is intact, and whether a run lost or duplicated anything.

The proof uses the journal alone, over any number of kills and resumes:

A1  every job ends exactly once: done, over its budget, failed or cancelled; before the end of the run it may also be present
A2  a job's iterations are recorded once and in order, 0 to n - 1; iterations after the point to which a recorded restart goes back
    are repeated, and a restart continues from a recorded checkpoint; the owner of an attached job may take back done iterations
A3  a node belongs to one place of one group at a time and is given back once; it runs only phases of that group, one at a time
    apart from a migrated tail, within its memory
A4  replaying the events gives a valid state after each of them, and an empty one at the end of a completed run
A5  the clock never runs backwards, also over resumes
A6  a job is parked when it has had its place for `min_run_s`; it then gets no permit, and runs nothing until it has a place again;
    it has one in the end, or ends

`check_run` asserts A2 for the iterations that count, and those invariants of a replay (`rollmux_env.replay.checks`) that a real run
can break:

R2  the clock never runs backwards
R3  no node runs two phases at once apart from one migrated tail, and never more than the whole node is used
R4  no node's residency is exceeded
R7  no sample is older when it is trained than its job allows
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.registry import observed_state
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Moved, Parked, Withdrawn
from rollmux_env.cluster.recorded import IMPOSSIBLE, apply_recorded
from rollmux_env.errors import InvariantError
from rollmux_env.replay.checks import check_clock, check_sample, check_state
from rollmux_env.scheduler.facts import Drained, Undrained
from rollmux_env.scheduler.ticks import INSTANT_S
from runtime.journal import facts as journal_facts
from runtime.journal.carry import count_carried
from runtime.journal.facts import PROFILING_GROUP, Fact, NodeShareSpan, PhaseSlice, SharingBound, StateOffloaded, SyncSlice
from runtime.journal.kinds import kind_of
from runtime.journal.record import RunRecord
from runtime.journal.write import record_of

_NodeSlot = tuple[int, str, int]  # group, pool, number of the node within the group
_OF_PLACED_JOBS = journal_facts.PhaseGranted | PhaseSlice | SyncSlice | journal_facts.IterationSlice | journal_facts.JobCheckpointed
_AT_LAST = journal_facts.JobCarried | journal_facts.PartBegun  # at the last time of the part before, maybe that of a sync
JobOutcome = Literal["done", "over_budget", "failed", "cancelled", "present"]


@dataclass(frozen=True)
class Audit:
    """Result of an audit.

    Attributes:
        jobs: Outcome of every job, by id.
        iterations: Number of iterations that count, over all jobs, without those of earlier parts of the journal.
        repeated: Number of iterations that were done again after a restart.
        restarts: Number of restarts of jobs.
        relaunches: Number of times that the run was resumed.
        problems: One line for each violated invariant, starting with its number. Empty if nothing was lost or duplicated.
    """

    jobs: dict[str, JobOutcome]
    iterations: int
    repeated: int
    restarts: int
    relaunches: int
    problems: tuple[str, ...]


def audit(facts: Sequence[Fact]) -> Audit:
    """Check a journal's facts, in their order, against the invariants.

    Raises:
        InputError: They are not the facts of a run.
    """
    record = record_of(facts)
    jobs, doubled = outcomes(record)
    problems = [*doubled, *_iterations(facts, record), *_nodes(facts, record), *_states(record), *_clock(facts)]
    problems += _parks(facts, record)
    try:
        _check_phases(record)
    except InvariantError as error:
        problems.append(f"A3: {error}")
    except IMPOSSIBLE as error:
        problems.append(f"A3: a phase does not go with the facts around it: {error!r}")
    before = sum(fact.iterations for fact in facts if isinstance(fact, journal_facts.JobCarried))
    again = before - sum(fact.iterations for fact in record.jobs_carried)  # iterations of earlier parts that this one repeats
    iterations, repeated = len(record.iterations) - again, len(record.repeated) + again
    relaunches = sum(isinstance(fact, journal_facts.RunRelaunched) for fact in facts[count_carried(facts) :])
    return Audit(jobs, iterations, repeated, len(record.restarted), relaunches, tuple(problems))


def _done(record: RunRecord) -> bool:
    return record.ended is not None and record.ended.outcome == "done"


def outcomes(record: RunRecord) -> tuple[dict[str, JobOutcome], list[str]]:
    """Return the outcome of every job, and the violations of A1."""
    specs = [fact.spec for fact in record.submitted]
    done = record.done
    whole = {spec.id for spec in specs if spec.has_done(done[spec.id])}  # owners report attached jobs
    ends: dict[JobOutcome, Counter[str]] = {
        "failed": Counter(fact.job_id for fact in record.failed),
        "cancelled": Counter(fact.job_id for fact in record.cancelled),
        "over_budget": Counter(record.over_budget),
        "done": Counter(whole | {fact.job_id for fact in record.leases_ended if fact.done}),
    }
    submitted = Counter(spec.id for spec in specs)
    problems = [f"A1: job {job_id} was submitted {times} times" for job_id, times in submitted.items() if times > 1]
    jobs: dict[str, JobOutcome] = {}
    for spec in specs:
        jobs[spec.id] = next((outcome for outcome, counts in ends.items() if counts[spec.id]), "present")
        if (times := sum(counts[spec.id] for counts in ends.values())) > 1:
            problems.append(f"A1: job {spec.id} ended {times} times")
        if _done(record) and jobs[spec.id] == "present":
            problems.append(f"A1: job {spec.id} is lost: the run ended after {done[spec.id]} of its {spec.iterations} iterations")
    unknown = sorted((done.keys() | ends["failed"].keys() | ends["cancelled"].keys()) - jobs.keys())
    problems += map("A1: job {} was never submitted".format, unknown)
    return jobs, problems


def _iterations(facts: Sequence[Fact], record: RunRecord) -> Iterator[str]:
    """Check A2: that every job's iterations are recorded once and in order."""
    most = {fact.spec.id: fact.spec.iterations for fact in record.submitted}
    due: Counter[str] = Counter()  # number of each job's next iteration
    checkpoints: set[tuple[str, int]] = set()  # job and number of iterations that it had done
    over: set[str] = set()
    for fact in facts:
        if isinstance(fact, journal_facts.JobFailed | journal_facts.JobCancelled):
            over.add(fact.job_id)
        elif isinstance(fact, journal_facts.IterationSlice):
            if fact.number != due[fact.job_id] or fact.number >= most.get(fact.job_id, fact.number + 1):
                yield f"A2: job {fact.job_id} did iteration {fact.number} when {due[fact.job_id]} was due"
            if fact.job_id in over:
                yield f"A2: job {fact.job_id} did iteration {fact.number} after its end"
            due[fact.job_id] = fact.number + 1
        elif isinstance(fact, journal_facts.JobCheckpointed):
            if fact.iterations > due[fact.job_id]:
                yield f"A2: job {fact.job_id} has a checkpoint of {fact.iterations} iterations and did {due[fact.job_id]}"
            checkpoints.add((fact.job_id, fact.iterations))
        elif isinstance(fact, journal_facts.JobCarried):
            due[fact.job_id] = fact.iterations
            checkpoints |= {(fact.job_id, number) for number in fact.checkpoints}
        elif isinstance(fact, journal_facts.JobRestarted):
            yield from _restart(fact, due[fact.job_id], checkpoints)
            due[fact.job_id] = fact.iteration
        elif isinstance(fact, journal_facts.JobRolledBack):
            if fact.iteration >= due[fact.job_id]:
                yield f"A2: job {fact.job_id} takes back iteration {fact.iteration} when {due[fact.job_id]} was due"
            due[fact.job_id] = fact.iteration


def _restart(fact: journal_facts.JobRestarted, due: int, checkpoints: Container[tuple[str, int]]) -> Iterator[str]:
    """Check that a restart goes back, and to a checkpoint."""
    if fact.iteration > due:
        yield f"A2: job {fact.job_id} continues at iteration {fact.iteration} when {due} was due"
    elif fact.iteration and (fact.job_id, fact.iteration) not in checkpoints:
        yield f"A2: job {fact.job_id} continues at iteration {fact.iteration}, which has no checkpoint"


def _nodes(facts: Sequence[Fact], record: RunRecord) -> Iterator[str]:
    """Check A3: that every node is used by one place at a time."""
    places: dict[str, _NodeSlot] = {}
    drained: frozenset[str] = frozenset()
    for fact in facts:
        match fact:
            case journal_facts.SchedulerInformed():
                drained = _drained(fact, drained)
            case journal_facts.Assigned():
                yield from _assign(fact, places, drained)
            case journal_facts.Returned(at_s=at_s, node=node):
                if places.pop(node, None) is None:
                    yield f"A3: at {at_s:.3f} s {node} is given back, which no place had"
            case journal_facts.RunRelaunched(nodes=nodes):
                there = {node.name for node in nodes}
                places = {node: place for node, place in places.items() if node in there}
            case journal_facts.PhaseSlice(job_id=job_id, group=group, end_s=end_s):
                foreign = [node for node in fact.nodes if node not in places or places[node][0] != group]
                if foreign:
                    yield f"A3: job {job_id} ran on {foreign[0]}, which was not of group {group}, until {end_s:.3f} s"
    if _done(record):
        yield from (f"A3: {node} is {_named(place)} when the run has ended" for node, place in places.items())


def _drained(fact: journal_facts.SchedulerInformed, before: frozenset[str]) -> frozenset[str]:
    """Return the names of the drained nodes after a fact about the scheduler."""
    for report in fact.facts:
        if isinstance(report, Drained | Undrained):
            before = before | report.names if isinstance(report, Drained) else before - report.names
    return before


def _assign(fact: journal_facts.Assigned, places: dict[str, _NodeSlot], drained: Collection[str]) -> Iterator[str]:
    """Record that a node gets a place, and report conflicts."""
    place = fact.group, fact.pool, fact.number
    begins = f"A3: at {fact.at_s:.3f} s {fact.node} becomes {_named(place)}"
    if fact.node in drained:
        yield f"{begins}, and it is drained"
    if fact.node in places or place in places.values():
        yield f"{begins}, and one of them is taken"
    places[fact.node] = place


def _named(place: _NodeSlot) -> str:
    group, pool, number = place
    return f"{pool} node {number} of {'those lent' if group == PROFILING_GROUP else f'group {group}'}"


def _states(record: RunRecord) -> Iterator[str]:
    """Check A4: the state after each event."""
    state = observed_state(record.started.policy, record.started.cluster)
    arrived = 0
    for event in record.log:
        arrived += isinstance(event, Arrived) - isinstance(event, Withdrawn)
        try:
            apply_recorded(state, event)
            check_state(state, arrived, keeps_slo=False)
        except IMPOSSIBLE as error:
            yield f"A4: {kind_of(event)} at {event.at_s:.3f} s: {error}"
            return
    left = [job_id for group in state.group_list() for job_id in group.jobs] + state.waiting
    if left and _done(record):
        yield f"A4: the run has ended, and {left[0]} is still there"


def _clock(facts: Sequence[Fact]) -> Iterator[str]:
    """Check A5: that the facts are in order of time."""
    last_s = 0.0
    for fact in facts:
        if isinstance(fact, SharingBound | SyncSlice | _AT_LAST):  # the times of a sync come from the job's own clock
            continue
        if fact.at_s < last_s:
            yield f"A5: {kind_of(fact)} at {fact.at_s:.6f} s comes after {last_s:.6f} s"
        last_s = fact.at_s


def _parks(facts: Sequence[Fact], record: RunRecord) -> Iterator[str]:
    """Check A6: that jobs are not parked too early, hold nothing then, and get a place again or end."""
    parked: set[str] = set()
    placed_at_s: dict[str, float] = {}
    least_s = record.started.cluster.min_run_s
    for fact in facts:
        match fact:
            case Parked(job_id=job_id, at_s=at_s):
                parked.add(job_id)
                if at_s - placed_at_s.get(job_id, at_s) < least_s - INSTANT_S:
                    yield f"A6: job {job_id} is parked {at_s - placed_at_s.get(job_id, at_s):.3f} s after it got its place"
            case Admitted(job_id=job_id, at_s=at_s) | Moved(job_id=job_id, at_s=at_s):
                parked.discard(job_id)
                placed_at_s[job_id] = at_s
            case Withdrawn(job_id=job_id):
                parked.discard(job_id)
            case _ if isinstance(fact, _OF_PLACED_JOBS) and fact.job_id in parked:
                yield f"A6: at {fact.at_s:.3f} s job {fact.job_id} is parked, and {kind_of(fact)} says that it runs"
    if _done(record):
        yield from (f"A6: job {job_id} is parked when the run has ended" for job_id in sorted(parked))


def check_run(record: RunRecord) -> None:
    """Assert the invariants A2, R2, R3, R4 and R7 of a recorded run.

    Raises:
        InvariantError: An invariant does not hold. The message starts with its number.
    """
    for problem in _iterations((*record.jobs_carried, *record.iterations), record):
        raise InvariantError(problem)
    _check_phases(record)


def _check_phases(record: RunRecord) -> None:
    for iteration in (*record.iterations, *record.repeated):
        job, metrics = record.jobs.get(iteration.job_id), iteration.metrics
        if job is not None and {"trained_version", "sampled_version"} <= metrics.keys():
            check_sample(job, int(metrics["trained_version"]), int(metrics["sampled_version"]))
    check_clock([event.at_s for event in record.log])
    by_node: dict[str, list[PhaseSlice]] = defaultdict(list)
    for part in record.phases:
        if not part.asked_s <= part.start_s <= part.end_s:
            raise InvariantError(f"R2: a {part.phase} of job {part.job_id} ends before it begins")
        for node in part.nodes:
            by_node[node].append(part)
    for node, parts in by_node.items():
        _check_shares(node, [(span, part.job_id) for part in parts for span in part.node_spans() if span.node == node])
    _check_memory(record)


def _check_memory(record: RunRecord) -> None:
    """Assert R4 for the memory that jobs kept on a node from their last phase there until they left."""
    limits = {name: getattr(record.started.cluster, node.pool).node_memory_gb for name, node in record.nodes.items()}
    departures = [(event.at_s, event.job_id) for event in record.log if isinstance(event, Departed | Parked)]
    resident: dict[tuple[str, str], PhaseSlice | StateOffloaded] = {}  # latest fact about memory, by job and phase
    offloaded = sorted(record.offloaded, key=lambda fact: fact.at_s)
    for part in sorted(record.phases, key=lambda part: part.end_s):
        while departures and departures[0][0] <= part.end_s:
            _, job_id = departures.pop(0)
            resident = {key: other for key, other in resident.items() if key[0] != job_id}
        while offloaded and offloaded[0].at_s <= part.end_s:
            fact = offloaded.pop(0)
            if (fact.job_id, fact.pool) in resident:
                resident[fact.job_id, fact.pool] = fact
        resident[part.job_id, "training" if part.phase == "training" else "rollout"] = part
        for node in part.nodes:
            held_gb = sum(other.host_gb for other in resident.values() if node in other.nodes)
            if limits[node] is not None and held_gb > limits[node]:
                raise InvariantError(f"R4: {node} holds {held_gb:.3f} GB of {limits[node]:g}")


def _check_shares(node: str, spans: list[tuple[NodeShareSpan, str]]) -> None:
    spans.sort(key=lambda pair: (pair[0].from_s, pair[0].until_s))
    for k, (span, job_id) in enumerate(spans):
        for other, other_id in spans[k + 1 :]:
            if other.from_s >= span.until_s:
                break
            if other.tail == span.tail or span.share + other.share > 1 + 1e-9:
                raise InvariantError(f"R3: {node} runs {job_id} and {other_id} at {other.from_s:.3f} s")
