"""The files of a run's report: `results.json`, `trace.json` for Perfetto, a Gantt chart, and TensorBoard events."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rollmux_env.files import make_private, private_folder, write_whole
from rollmux_env.report.gantt import gantt_picture
from rollmux_env.report.lanes import NodeUse, follow
from rollmux_env.report.perfetto import JobSlice, trace_json
from rollmux_env.report.results import to_json
from runtime.journal.facts import PROFILING_GROUP, Assigned
from runtime.journal.record import RunRecord
from runtime.report.figures import figures
from runtime.report.scalars import scalars
from runtime.report.shared_time import shared_times

RESULTS, TRACE, GANTT, TENSORBOARD = "results.json", "trace.json", "gantt.png", "tensorboard"
_SHOWN = 6  # iterations in the Gantt chart


def write_report(folder: Path, record: RunRecord) -> dict[str, Any]:
    """Write all files of a run's report; they replace those of an earlier report.

    Args:
        folder: Folder of the run, which exists.
        record: Record of the run.

    Returns:
        The figures, as in `results.json`.

    Raises:
        InputError: If a file cannot be written; one line.
    """
    report = figures(record)
    write_whole(folder / RESULTS, to_json(report), private=True)
    write_whole(folder / TRACE, trace_of(record), private=True)
    picture = gantt_of(record)
    if picture is not None:
        write_whole(folder / GANTT, picture, private=True)
    write_events(folder / TENSORBOARD, record)
    return report


def trace_of(record: RunRecord) -> str:
    """Return a Perfetto trace of all phases on nodes, profiling included, and of syncs."""
    cluster = record.started.cluster
    lanes = [*follow(cluster, record.log)[0], *leased(record)]
    job_slices = [JobSlice(sync.job_id, "sync", sync.iteration, sync.start_s, sync.end_s) for sync in record.syncs]
    return trace_json(cluster, record.phase_runs(lent=True), lanes, record.log, 0.0, job_slices=job_slices)


def gantt_of(record: RunRecord) -> bytes | None:
    """Return a Gantt chart (PNG) of the first iterations of the shared time of the largest group, or None if no group has any."""
    best = max(shared_times(record), key=lambda shared: (len(shared.jobs), shared.until_s - shared.from_s), default=None)
    if best is None:
        return None
    own = [iteration for iteration in record.iterations if iteration.job_id == best.jobs[0] and iteration.end_s > best.from_s]
    until_s = min(best.until_s, own[min(_SHOWN, len(own)) - 1].end_s)
    lanes = [lane for lane in follow(record.started.cluster, record.log)[0] if lane.group == best.group]
    if not any(lane.from_s < until_s and lane.until_s > best.from_s for lane in lanes):
        return None  # the events of a run that was killed may end before the shared time begins
    phases = [phase for phase in record.phase_runs() if phase.group == best.group]
    title = f"group {best.group}, {record.started.policy}, {record.started.dispatch}, from {best.from_s:.1f} s"
    return gantt_picture(phases, lanes, best.from_s, until_s, title)


def leased(record: RunRecord) -> list[NodeUse]:
    """Return the lanes of nodes that were lent to jobs for their profiles."""
    open_leases: dict[str, tuple[str, int, float]] = {}
    lanes: list[NodeUse] = []
    last_s = max([record.ended.at_s if record.ended else 0.0, *(part.end_s for part in record.phases)])
    for fact in record.assigned:
        if fact.node in open_leases:
            pool, number, since_s = open_leases.pop(fact.node)
            lanes.append(NodeUse(PROFILING_GROUP, pool, number, since_s, fact.at_s))
        if isinstance(fact, Assigned) and fact.group == PROFILING_GROUP:
            open_leases[fact.node] = (fact.pool, fact.number, fact.at_s)
    return lanes + [NodeUse(PROFILING_GROUP, pool, number, since_s, last_s) for pool, number, since_s in open_leases.values()]


def write_events(folder: Path, record: RunRecord) -> None:
    """Write TensorBoard events, one TensorBoard run per job: metrics by iteration, and seconds of iterations and phases.

    Args:
        folder: Folder of the events, which is replaced.
        record: Record of the run.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # the writer of torch would load torch, for seconds
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    for job_id in dict.fromkeys(iteration.job_id for iteration in record.iterations):
        writer = EventFileWriter(str(folder / job_id))
        try:
            for tag, value, step, at_s in scalars(record, job_id):
                point = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(wall_time=record.wall_s(at_s), step=step, summary=point))
        finally:
            writer.close()
    make_private(folder)
