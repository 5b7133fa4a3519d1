"""Traces in the Chrome trace event format, for ui.perfetto.dev.

A process is one pool of a group, a thread is a node, and phases and switches are slices. A migrated tail shares its nodes with the
next rollout and has a separate track. The process `cluster` has counters of nodes and dollars, and instants: arrivals, admissions,
moves, resumptions and departures. Work of real jobs that holds no node, such as syncs, is in a separate process with a thread per
job.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Parked, Resumed
from rollmux_env.keys.cluster import Cluster
from rollmux_env.replay.run import PhaseRun
from rollmux_env.report.lanes import POOLS, NodeUse, node_steps

_CLUSTER = 1  # process and thread of records that concern all groups
_Record = dict[str, Any]


class JobSlice(NamedTuple):
    """An interval in which a job works without holding a node, such as a sync.

    Attributes:
        job_id: Identifier of the job.
        what: Kind of work, such as `sync`.
        iteration: Number of the iteration.
        start_s: Start, in seconds.
        end_s: End, in seconds.
    """

    job_id: str
    what: str
    iteration: int
    start_s: float
    end_s: float


def trace_json(
    cluster: Cluster,
    phases: Sequence[PhaseRun],
    lanes: Sequence[NodeUse],
    log: Iterable[Event],
    zero_s: float,
    window_s: tuple[float, float] | None = None,
    job_slices: Sequence[JobSlice] = (),
) -> str:
    """Return a trace of some groups.

    Args:
        cluster: Cluster with the labels and prices of its pools.
        phases: Phases to show. Phases on nodes without a lane are left out. Apart from tails, no two phases overlap on a node.
        lanes: Nodes to show and to count, of one group or of several.
        log: Events to show as instants, in order of time.
        zero_s: Time that is 0 in the trace, in seconds.
        window_s: Start and end of the slices and instants to show in seconds, or None for all.
        job_slices: Work of jobs that holds no node.

    Returns:
        JSON with one record per line, the same bytes for the same arguments. Times are whole microseconds.
    """
    pools = sorted({(lane.group, POOLS.index(lane.pool)) for lane in lanes})
    processes = {(group, POOLS[k]): _CLUSTER + 1 + number for number, (group, k) in enumerate(pools)}
    # Thread numbers differ from process numbers: Perfetto takes a thread with its process's number for the main thread.
    first = _CLUSTER + len(pools) + 1
    threads = {(lane.group, lane.pool, lane.node): first + number for number, lane in enumerate(sorted(lanes))}
    gpus = {(lane.group, lane.pool): cluster.pools[lane.owner].gpu or lane.other_pool for lane in lanes}
    records = _names(gpus, processes, threads)
    from_s, until_s = window_s or (float("-inf"), float("inf"))
    records += _counters(cluster, lanes, zero_s, from_s, until_s)
    shaped: set[str] = set()  # jobs with several shapes
    for event in log:
        if isinstance(event, Arrived) and event.job.shapes:
            shaped.add(event.job.id)
        if from_s <= event.at_s <= until_s:
            records += _instants(event, zero_s, shaped)
    records += _slices([phase for phase in phases if _overlap(phase, from_s, until_s)], processes, threads, zero_s)
    beside = [job_slice for job_slice in job_slices if _overlap(job_slice, from_s, until_s)]
    records += _work_without_nodes(beside, first + len(threads), zero_s)
    lines = ",\n".join(json.dumps(record, separators=(",", ":"), allow_nan=False) for record in records)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def _overlap(span: PhaseRun | JobSlice, from_s: float, until_s: float) -> bool:
    """Return whether a span and a window overlap."""
    return span.start_s < until_s and span.end_s > from_s


def _label(kind: str, pid: int, tid: int, value: str, place: int) -> list[_Record]:
    """Return records that name a process or a thread and set its position."""
    head = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**head, "name": f"{kind}_name", "args": {"name": value}},
        {**head, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _names(
    gpus: dict[tuple[int, str], str], processes: dict[tuple[int, str], int], threads: dict[tuple[int, str, int], int]
) -> list[_Record]:
    records = _label("process", _CLUSTER, _CLUSTER, "cluster", 0) + _label("thread", _CLUSTER, _CLUSTER, "events", 0)
    for (group, pool), pid in processes.items():
        gpu = gpus[group, pool]
        owner = f"group {group}" if group >= 0 else "profiling"
        records += _label("process", pid, pid, f"{owner} {pool}" + (f" ({gpu})" if gpu else ""), pid)
    for (group, pool, node), tid in threads.items():
        records += _label("thread", processes[group, pool], tid, f"{pool} node {node}", node)
    return records


def _counters(cluster: Cluster, lanes: Sequence[NodeUse], zero_s: float, from_s: float, until_s: float) -> list[_Record]:
    """Return counters of nodes and $/h at each change, and at the start of the window."""
    names = POOLS if {*cluster.pools} <= {*POOLS} else (*cluster.pools,)
    steps = {max(at_s, from_s): nodes for at_s, nodes in node_steps(lanes, names) if at_s <= until_s}
    records: list[_Record] = []
    for at_s, nodes in steps.items():
        head = {"ph": "C", "pid": _CLUSTER, "tid": _CLUSTER, "ts": _microseconds(at_s, zero_s)}
        usd = sum(nodes[name] * pool.usd_per_node_hour for name, pool in cluster.pools.items())
        records.append({**head, "name": "nodes", "args": nodes})
        records.append({**head, "name": "usd_per_hour", "args": {"usd_per_hour": round(usd, 6)}})
    return records


def happened(event: Event) -> tuple[str, str] | None:
    """Return the job of a placement event and a text of what happened to it, or None for other events."""
    match event:
        case Arrived(job=job):
            return job.id, "arrived"
        case Admitted(job_id=job_id, placement=placement):
            return job_id, f"admitted, {placement.strategy}"
        case Moved(job_id=job_id):
            return job_id, "moved"
        case Resumed(job_id=job_id):
            return job_id, "resumed"
        case Departed(job_id=job_id):
            return job_id, "departed"
        case Parked(job_id=job_id):
            return job_id, "parked"
    return None


def _instants(event: Event, zero_s: float, shaped: Collection[str]) -> list[_Record]:
    """Return the instant of a placement event. For jobs with shapes it names the shape."""
    about = happened(event)
    if about is None:
        return []
    job_id, name = about
    args: _Record = {"job": job_id}
    if isinstance(event, Admitted | Moved) and job_id in shaped:
        name, args["shape"] = f"{name}, shape {event.placement.shape}", event.placement.shape
    head = {"ph": "i", "s": "t", "pid": _CLUSTER, "tid": _CLUSTER, "ts": _microseconds(event.at_s, zero_s)}
    return [{**head, "name": f"{job_id} {name}", "cat": "placement", "args": args}]


def _slices(
    phases: Sequence[PhaseRun], processes: dict[tuple[int, str], int], threads: dict[tuple[int, str, int], int], zero_s: float
) -> list[_Record]:
    """Return slices in order of time per node: a switch, then the phase that it delays."""
    names = _distinct([phase.job_id for phase in phases])
    records: list[_Record] = []
    for phase in phases:
        runs_s = min(phase.start_s + phase.switch_s, phase.end_s)
        times = [_microseconds(at_s, zero_s) for at_s in (phase.start_s, runs_s, phase.end_s)]
        args = {"job": phase.job_id, "phase": phase.phase, "iteration": phase.iteration}
        if phase.phase == "tail":
            records += _tail(phase, names[phase.job_id], processes, args, times)
            continue
        for node in phase.nodes:
            tid = threads.get((phase.group, phase.pool, node))
            if tid is None:
                continue
            head = {"ph": "X", "pid": processes[phase.group, phase.pool], "tid": tid}
            parts = (("switch", "switch", times[0], times[1]), (names[phase.job_id], phase.phase, times[1], times[2]))
            for name, kind, begin, end in parts:
                if end > begin:
                    records.append({**head, "ts": begin, "dur": end - begin, "name": name, "cat": kind, "args": args})
    records.sort(key=lambda record: (record["tid"], record["ts"]))
    return records


def _tail(
    phase: PhaseRun, name: str, processes: dict[tuple[int, str], int], args: dict[str, Any], times: Sequence[int]
) -> list[_Record]:
    """Return the beginning and the end of a tail as an asynchronous event of the group's pool."""
    pid = processes.get((phase.group, phase.pool))
    if pid is None or times[2] <= times[0]:
        return []
    identity = f"{phase.job_id}/{phase.iteration}"
    head = {"name": f"{name} tail", "cat": "tail", "id": identity, "pid": pid, "tid": pid}
    return [{**head, "ph": "b", "ts": times[0], "args": args}, {**head, "ph": "e", "ts": times[2]}]


def _work_without_nodes(job_slices: Sequence[JobSlice], pid: int, zero_s: float) -> list[_Record]:
    """Return the records of work that holds no node: one process, with a thread per job and its slices."""
    threads = {
        job_id: pid + 1 + number for number, job_id in enumerate(dict.fromkeys(job_slice.job_id for job_slice in job_slices))
    }
    records = _label("process", pid, pid, "beside phases", pid) if job_slices else []
    for job_id, tid in threads.items():
        records += _label("thread", pid, tid, job_id, tid)
    for job_slice in sorted(job_slices, key=lambda job_slice: (threads[job_slice.job_id], job_slice.start_s)):
        start, end = _microseconds(job_slice.start_s, zero_s), _microseconds(job_slice.end_s, zero_s)
        args = {"job": job_slice.job_id, "phase": job_slice.what, "iteration": job_slice.iteration}
        head = {"ph": "X", "pid": pid, "tid": threads[job_slice.job_id], "ts": start, "dur": end - start}
        records.append({**head, "name": job_slice.what, "cat": job_slice.what, "args": args})
    return records


def _distinct(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the names of slices by job.

    Perfetto colours a slice by its name without digits. Identifiers that differ only in digits therefore get letters.
    """
    bare = {job_id: re.sub(r"\d", "", job_id) for job_id in job_ids}
    alike = Counter(bare.values())
    return {job_id: f"{job_id} {_letters(k)}" if alike[bare[job_id]] > 1 else job_id for k, job_id in enumerate(bare)}


def _letters(number: int) -> str:
    """Return the number as letters: a, b, ..., z, ba, bb, ..."""
    rest, last = divmod(number, 26)
    return (_letters(rest) if rest else "") + chr(ord("a") + last)


def _microseconds(at_s: float, zero_s: float) -> int:
    return round((at_s - zero_s) * 1e6)
