"""The shared time of groups in a run, and the work of jobs in it per provisioned node-second.

The shared time of a group is the time in which every job that was ever its member has completed its first iteration there and not
its last one there. In it the group is as full as it gets, and nothing starts cold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rollmux_env.cluster.demand import demand_of
from rollmux_env.report.lanes import POOLS, NodeUse, shares
from runtime.journal.facts import IterationSlice
from runtime.journal.record import RunRecord
from runtime.report.jobs import job_ids, mean, solo_seconds


class SharedTime(NamedTuple):
    """The shared time of a group.

    Attributes:
        group: Number of the group.
        jobs: Ids of its jobs.
        from_s: Beginning, in seconds.
        until_s: End, in seconds.
    """

    group: int
    jobs: tuple[str, ...]
    from_s: float
    until_s: float


def shared_times(record: RunRecord) -> list[SharedTime]:
    """Return the shared time of every group that has one.

    A group has none if a member ends there before another one begins, or has only one iteration there.
    """
    times = []
    for group, iterations in _iterations_by_group(record):
        from_s = max(done[0].end_s for done in iterations.values())
        until_s = min(done[-1].end_s for done in iterations.values())
        if from_s < until_s:
            times.append(SharedTime(group, tuple(iterations), from_s, until_s))
    return times


def throughput(record: RunRecord, lanes: Sequence[NodeUse]) -> dict[str, float | None] | None:
    """Return the work per provisioned node-hour against solo disaggregation, or None unless every job that ran was measured alone.

    An iteration of a job is worth the node-seconds that it costs alone on its own nodes. `gain` is the worth of the shared times of
    all groups over their provisioned node-seconds. `gain_whole_run` is the worth of all iterations (`solo_node_hours`) over all
    node-seconds from the first admission to the end, starts and tails included. `bound` is the gain of two phases on two nodes at
    once over the same phases one after the other, measured in the same run.

    Args:
        record: Record of the run.
        lanes: Provisioned nodes of groups.
    """
    worth = _worth(record)
    if worth is None:
        return None
    done = paid = 0.0
    for shared in shared_times(record):
        if all(job_id in worth for job_id in shared.jobs):
            done += sum(_progress(record, job_id, shared.from_s, shared.until_s) * worth[job_id] for job_id in shared.jobs)
            paid += _provisioned(lanes, shared.group, shared.from_s, shared.until_s)
    whole = sum(len(record.iterations_of(job_id)) * worth.get(job_id, 0.0) for job_id in job_ids(record))
    paid_whole = _provisioned(lanes)
    alone = sum(sum(bound.alone_s) for bound in record.bounds)
    bound = alone / sum(max(bound.parallel_s) for bound in record.bounds) if record.bounds else None
    gain = done / paid if paid else None
    return {
        "gain": gain,
        "bound": bound,
        "of_bound": gain / bound if gain and bound else None,
        "gain_whole_run": whole / paid_whole if paid_whole else None,
        "node_hours": paid_whole / 3600,
        "solo_node_hours": whole / 3600,
    }


def _worth(record: RunRecord) -> dict[str, float] | None:
    """Return the node-seconds that an iteration of each job costs alone, or None unless every job that ran was measured so."""
    worth: dict[str, float] = {}
    for job_id in dict.fromkeys(iteration.job_id for iteration in record.iterations):
        alone_s, demand = mean(solo_seconds(record, job_id)), demand_of(record.jobs[job_id], record.started.cluster)
        if alone_s is None:
            return None
        worth[job_id] = alone_s * (demand.rollout_nodes + demand.training_nodes)
    return worth or None


def group_figures(record: RunRecord, lanes: Sequence[NodeUse], shared: SharedTime) -> dict[str, Any]:
    """Return the figures of a group in its shared time: seconds of an iteration by job, and shares of its node-seconds by pool.

    Args:
        record: Record of the run.
        lanes: Provisioned nodes of groups.
        shared: Shared time of the group.
    """
    own = [lane for lane in lanes if lane.group == shared.group]
    phases = record.phase_runs()
    by_pool = {pool: shares(phases, [lane for lane in own if lane.pool == pool], shared.from_s, shared.until_s) for pool in POOLS}
    length_s = shared.until_s - shared.from_s
    return {
        "group": shared.group,
        "jobs": list(shared.jobs),
        "shared_s": length_s,
        "iteration_s": {
            job_id: length_s / done
            for job_id in shared.jobs
            if (done := _progress(record, job_id, shared.from_s, shared.until_s)) > 0
        },
        "pools": {pool: split._asdict() if split else None for pool, split in by_pool.items()},
    }


def _iterations_by_group(record: RunRecord) -> list[tuple[int, dict[str, list[IterationSlice]]]]:
    """Return the iterations that jobs have done in each group, by job. An iteration belongs to the group of its last phase."""
    places = {(part.job_id, part.iteration): part.group for part in record.phases if part.group >= 0 and not part.profile}
    by_group: dict[int, dict[str, list[IterationSlice]]] = defaultdict(lambda: defaultdict(list))
    for done in record.iterations:
        if (group := places.get((done.job_id, done.number))) is not None:
            by_group[group][done.job_id].append(done)
    return sorted(by_group.items())


def _progress(record: RunRecord, job_id: str, from_s: float, until_s: float) -> float:
    """Return the iterations of a job between two times, with fractions."""
    done = 0.0
    for iteration in record.iterations_of(job_id):
        inside = min(iteration.end_s, until_s) - max(iteration.start_s, from_s)
        if inside > 0:
            done += inside / (iteration.end_s - iteration.start_s)
    return done


def _provisioned(
    lanes: Iterable[NodeUse], group: int | None = None, from_s: float = float("-inf"), until_s: float = float("inf")
) -> float:
    """Return the node-seconds of lanes between two times."""
    return sum(
        max(0.0, min(lane.until_s, until_s) - max(lane.from_s, from_s)) for lane in lanes if group is None or lane.group == group
    )
