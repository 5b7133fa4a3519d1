"""Invariants of a run, read off its record: those of a replay (`rollmux_env.replay.checks`) that a real run can break.

R1  no job is lost or doubled: its iterations are counted once, in order
R2  the clock never runs back
R3  no node runs two phases at once, but for one migrated tail, and never more than the whole of a node
R4  no node's residency is exceeded
R7  no sample is older when it is trained than its job allows
"""

from __future__ import annotations

from collections import defaultdict

from rollmux_env.cluster.events import Departed
from rollmux_env.errors import InvariantError
from rollmux_env.replay.checks import check_clock, check_sample
from runtime.journal.facts import Offloaded, PhaseSlice, Span
from runtime.journal.record import RunRecord


def check_run(record: RunRecord) -> None:
    """Assert all of them.

    Raises:
        InvariantError: the message begins with the number of the invariant.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for iteration in record.iterations:
        numbers[iteration.job_id].append(iteration.number)
    for job_id, counts in numbers.items():
        if counts != [*range(len(counts))]:
            raise InvariantError(f"R1: the iterations of job {job_id} are numbered {counts}")
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
    """Assert R4, of what jobs kept on a node after their last phase there, until they left."""
    limits = {name: getattr(record.started.cluster, node.pool).node_memory_gb for name, node in record.nodes.items()}
    departures = [(event.at_s, event.job_id) for event in record.log if isinstance(event, Departed)]
    resident: dict[tuple[str, str], PhaseSlice | Offloaded] = {}  # by job and phase
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


def _check_shares(node: str, spans: list[tuple[Span, str]]) -> None:
    spans.sort(key=lambda pair: (pair[0].from_s, pair[0].until_s))
    for k, (span, job_id) in enumerate(spans):
        for other, other_id in spans[k + 1 :]:
            if other.from_s >= span.until_s:
                break
            if other.tail == span.tail or span.share + other.share > 1 + 1e-9:
                raise InvariantError(f"R3: {node} runs {job_id} and {other_id} at {other.from_s:.3f} s")
