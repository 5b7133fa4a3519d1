"""Invariants of a run, read off its record: those of a replay (`rollmux_env.replay.checks`) that a real run can break.

R1  no job is lost or doubled: its iterations are counted once, in order
R2  the clock never runs back
R3  no node runs two phases at once, but for one migrated tail, and never more than the whole of a node
R4  no node's residency is exceeded
"""

from __future__ import annotations

from collections import defaultdict

from rollmux_env.replay.checks import InvariantError, check_clock
from runtime.record import PhaseSlice, RunRecord, Span


def check_run(record: RunRecord) -> None:
    """Assert all of them.

    Raises:
        InvariantError: the message begins with the number of the invariant.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for iteration in record.iterations:
        numbers[iteration.job_id].append(iteration.number)
    for job_id, found in numbers.items():
        if found != [*range(len(found))]:
            raise InvariantError(f"R1: the iterations of job {job_id} are numbered {found}")
    check_clock([event.at_s for event in record.log])
    by_node: dict[str, list[PhaseSlice]] = defaultdict(list)
    for part in record.phases:
        if not part.asked_s <= part.start_s <= part.end_s:
            raise InvariantError(f"R2: a {part.phase} of job {part.job_id} ends before it begins")
        for node in part.nodes:
            by_node[node].append(part)
    limits = {node.name: getattr(record.started.cluster, node.pool).node_memory_gb for node in record.started.nodes}
    for node, parts in by_node.items():
        _check_shares(node, [(span, part.job_id) for part in parts for span in part.held() if span.node == node])
        kept_gb = {part.job_id: part.host_gb for part in parts}
        if limits[node] is not None and sum(kept_gb.values()) > limits[node]:
            raise InvariantError(f"R4: {node} holds {sum(kept_gb.values()):.3f} GB of {limits[node]:g}")


def _check_shares(node: str, held: list[tuple[Span, str]]) -> None:
    held.sort(key=lambda pair: (pair[0].from_s, pair[0].until_s))
    for k, (span, job_id) in enumerate(held):
        for other, other_id in held[k + 1 :]:
            if other.from_s >= span.until_s:
                break
            if other.tail == span.tail or span.share + other.share > 1 + 1e-9:
                raise InvariantError(f"R3: {node} runs {job_id} and {other_id} at {other.from_s:.3f} s")
