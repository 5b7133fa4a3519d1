"""What a job with shapes did in each of them: on which nodes, how it is planned there, and how long it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rollmux_env.cluster.events import Reprofiled
from rollmux_env.report.job_shapes import shape_in_use
from runtime.journal.record import RunRecord
from runtime.report.measured import PHASES, mean, phases_of
from runtime.stays import Stay, stay_at


def shapes_used(record: RunRecord, job_id: str, stays: Sequence[Stay]) -> list[dict[str, Any]]:
    """The shapes that a job has been in, in order, each on so many nodes once.

    Args:
        stays: of the job, as `runtime.stays.stays_of` tells them.

    Returns:
        Of each `shape` (its number), `nodes` by phase, `iterations`, `iteration_s` (mean; without the first one in a place, which
        begins with a cold start), `phase_s` (means of warm phases), and by which figures it is planned there, as they were known
        last: `worst_case_s` by phase and `alone_s` of an iteration.
    """
    jobs = [event.job for event in record.log if isinstance(event, Reprofiled) and event.job.id == job_id]
    seconds: dict[Stay, list[float]] = defaultdict(list)
    for done in record.iterations_of(job_id):
        seconds[stay_at(stays, done.end_s)].append(done.end_s - done.start_s)
    warm = {name: [part for part in phases_of(record, job_id, name) if not part.cold] for name in PHASES}
    used = []
    for shape, training_nodes in dict.fromkeys((stay.shape, stay.training_nodes) for stay in stays):
        own = [stay for stay in stays if (stay.shape, stay.training_nodes) == (shape, training_nodes)]
        planned = shape_in_use(jobs[-1] if jobs else record.jobs[job_id], shape, training_nodes)
        here = {name: [part for part in parts if stay_at(stays, part.end_s) in own] for name, parts in warm.items()}
        used.append(
            {
                "shape": shape,
                "nodes": planned.nodes,
                "iterations": sum(len(seconds[stay]) for stay in own),
                "iteration_s": mean(value for stay in own for value in seconds[stay][1:] or seconds[stay]),
                "phase_s": {name: mean(part.end_s - part.start_s for part in parts) for name, parts in here.items()},
                "worst_case_s": planned.worst_case_s,
                "alone_s": planned.alone_s,
            }
        )
    return used
