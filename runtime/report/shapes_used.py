"""What a job with shapes did in each of them: on which nodes, how it is planned there, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rollmux_env.cluster.events import Reprofiled
from rollmux_env.keys.job import Job
from rollmux_env.report.job_shapes import shape_in_use
from runtime.journal.record import RunRecord
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
    job = known_job(record, job_id)
    seconds: list[list[float]] = [[] for _ in stays]
    phases: list[dict[str, list[float]]] = [{"rollout": [], "training": []} for _ in stays]
    for done in record.iterations_of(job_id):
        seconds[stay_at(stays, done.end_s)].append(done.end_s - done.start_s)
    for part in record.phases:
        if part.job_id == job_id and part.phase != "init" and part.ok and not part.profile and not part.cold:
            phases[stay_at(stays, part.end_s)][part.phase].append(part.end_s - part.start_s)
    used = []
    for shape, training_nodes in dict.fromkeys((stay.shape, stay.training_nodes) for stay in stays):
        own = [k for k, stay in enumerate(stays) if (stay.shape, stay.training_nodes) == (shape, training_nodes)]
        planned = shape_in_use(job, shape, training_nodes)
        warm_s = [value for k in own for value in (seconds[k][1:] or seconds[k])]
        taken_s = {name: [value for k in own for value in phases[k][name]] for name in ("rollout", "training")}
        used.append(
            {
                "shape": shape,
                "nodes": planned.nodes,
                "iterations": sum(len(seconds[k]) for k in own),
                "iteration_s": fmean(warm_s) if warm_s else None,
                "phase_s": {name: fmean(values) if values else None for name, values in taken_s.items()},
                "worst_case_s": planned.worst_case_s,
                "alone_s": planned.alone_s,
            }
        )
    return used


def known_job(record: RunRecord, job_id: str) -> Job:
    """A job by what was known of it last."""
    known = record.jobs[job_id]
    for event in record.log:
        if isinstance(event, Reprofiled) and event.job.id == job_id:
            known = event.job
    return known
