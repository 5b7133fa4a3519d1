"""Invariants of a run, read off its record: those of a replay (`rollmux_env.replay.checks`) that a real run can break.

R1  no job is lost or doubled: its iterations are counted once, in order
R2  the clock never runs back
R3  no node runs two phases at once
R4  no node's residency is exceeded
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from rollmux_env.replay.checks import InvariantError, check_clock
from runtime.record import PhaseSlice, RunRecord


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
        for before, after in pairwise(sorted(parts, key=lambda part: (part.start_s, part.end_s))):
            if after.start_s < before.end_s:
                raise InvariantError(f"R3: {node} runs {before.job_id} and {after.job_id} at {after.start_s:.3f} s")
        kept_gb = {part.job_id: part.host_gb for part in parts}
        if limits[node] is not None and sum(kept_gb.values()) > limits[node]:
            raise InvariantError(f"R4: {node} holds {sum(kept_gb.values()):.3f} GB of {limits[node]:g}")
