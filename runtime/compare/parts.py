"""The parts of an iteration's time, in a run by its record, and in a replay by its phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from rollmux_env.cluster.events import Event, Parked, Resumed
from rollmux_env.replay.run import PhaseRun, Run
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord


class IterationParts(NamedTuple):
    """Seconds of an iteration, from the end of the previous one to its own end.

    The first one begins when its rollout is ready, and so does the first one after a park: the time for which a job is parked, and
    in which its processes start again, belongs to no iteration.

    Attributes:
        rollout: Seconds of the rollout itself.
        training: Seconds of the training itself.
        sync: Seconds in which weights are transferred.
        switch: Seconds of permits on their way, loading, offloading, and of a cold start beyond a warm one.
        waiting: Seconds of waiting for nodes.
        other: Seconds between phases: messages, checkpoints, steps of the job itself.

    The rollouts of a stale job overlap its trainings. Its iterations consist of trainings and of waiting for nodes or samples.
    """

    rollout: float = 0.0
    training: float = 0.0
    sync: float = 0.0
    switch: float = 0.0
    waiting: float = 0.0
    other: float = 0.0


def mean_parts(parts: Sequence[IterationParts]) -> IterationParts:
    """Return the mean of at least one iteration."""
    return IterationParts(*(fmean(column) for column in zip(*parts, strict=True)))


def slices_of(record: RunRecord, job_id: str, count: float = inf) -> dict[int, list[PhaseSlice]]:
    """Return the phases of a job by iteration, without those of its profile and failed ones.

    Args:
        record: Record of the run.
        job_id: Id of the job.
        count: Number of first iterations to return.
    """
    slices: dict[int, list[PhaseSlice]] = defaultdict(list)
    for part in record.phases:
        if part.job_id == job_id and not part.profile and part.ok and 0 <= part.iteration < count:
            slices[part.iteration].append(part)
    return slices


def measured_parts(record: RunRecord, job_id: str) -> list[IterationParts]:
    """Return the parts of a job's iterations in a run, in order."""
    slices, stale = slices_of(record, job_id), record.jobs[job_id].staleness > 0
    usual_s = _usual_s(part for own in slices.values() for part in own)
    sync_s = _sync_s(record, job_id)
    parts = []
    since_s, resumed_s = None, _resumed_s(record.log, job_id)
    for iteration in record.iterations_of(job_id):
        begin_s = iteration.start_s if since_s is None else _begin_s(since_s, iteration.end_s, resumed_s)
        if since_s is not None and begin_s > since_s:
            begin_s = max(begin_s, iteration.start_s)
        since_s = iteration.end_s
        own = [part for part in slices[iteration.number] if part.phase == "training" or not stale]
        method = {"rollout": 0.0, "training": 0.0}
        for part in own:
            if part.phase != "init":
                seconds = part.done_s - part.run_s
                method[part.phase] += min(seconds, usual_s.get(_kind(part), seconds)) if part.cold else seconds
        waiting_s = sum(max(0.0, part.start_s - (begin_s if stale else max(part.asked_s, begin_s))) for part in own)
        switch_s = sum(part.end_s - part.start_s for part in own) - sum(method.values())
        known = IterationParts(**method, sync=sync_s[iteration.number], switch=switch_s, waiting=waiting_s)
        parts.append(known._replace(other=iteration.end_s - begin_s - sum(known)))
    return parts


def _sync_s(record: RunRecord, job_id: str) -> dict[int, float]:
    """Return the seconds of syncs, by iteration."""
    seconds: dict[int, float] = defaultdict(float)
    for sync in record.syncs:
        if sync.job_id == job_id and not sync.profile:
            seconds[sync.iteration] += sync.end_s - sync.start_s
    return seconds


def _resumed_s(log: Iterable[Event], job_id: str) -> list[float]:
    """Return the times at which a job continued after it had been parked."""
    times, is_parked = list[float](), False
    for event in log:
        if isinstance(event, Parked | Resumed) and event.job_id == job_id:
            if is_parked and isinstance(event, Resumed):
                times.append(event.at_s)
            is_parked = isinstance(event, Parked)
    return times


def _begin_s(since_s: float, end_s: float, resumed_s: Iterable[float]) -> float:
    """Return the beginning of an iteration: the end of the one before, or the time at which the job continued after that."""
    return max((at_s for at_s in resumed_s if since_s < at_s < end_s), default=since_s)


def _usual_s(parts: Iterable[PhaseSlice]) -> dict[tuple[str, int], float]:
    """Return the mean seconds of the method itself in warm phases, by phase and number of nodes."""
    warm: dict[tuple[str, int], list[float]] = defaultdict(list)
    for part in parts:
        if not part.cold:
            warm[_kind(part)].append(part.done_s - part.run_s)
    return {kind: fmean(seconds) for kind, seconds in warm.items()}


def _kind(part: PhaseSlice) -> tuple[str, int]:
    return part.phase, len(part.nodes)


def groups_of(record: RunRecord, job_id: str) -> list[int]:
    """Return the group in which each iteration of a job ended, or -1."""
    slices = slices_of(record, job_id)
    return [slices[one.number][-1].group if slices[one.number] else -1 for one in record.iterations_of(job_id)]


class FixedParts(NamedTuple):
    """Parts of an iteration that a replay does not separate from its phases.

    Attributes:
        rollout_switch: Seconds of a rollout's warm switch.
        training_switch: Seconds of a training's warm switch.
        sync: Seconds of the sync.
        other: Seconds between phases.
    """

    rollout_switch: float
    training_switch: float
    sync: float
    other: float


def replayed_parts(run: Run, fixed: dict[str, FixedParts], begin_s: dict[str, float]) -> dict[str, list[IterationParts]]:
    """Return the parts of each job's iterations in a replay, in order.

    Args:
        run: The replay.
        fixed: Parts that the replay does not separate, by job.
        begin_s: Time of admission in seconds, by job.
    """
    spans: dict[tuple[str, int, str], list[PhaseRun]] = defaultdict(list)
    for phase in run.phases:
        spans[phase.job_id, phase.iteration, "training" if phase.phase == "training" else "rollout"].append(phase)
    by_job: dict[str, list[IterationParts]] = {}
    stale = {job.id for job in run.scenario.jobs if job.staleness}
    for job_id, ends_s in ends_of(run).items():
        own, since_s, parts, resumed_s = fixed[job_id], begin_s[job_id], [], _resumed_s(run.log, job_id)
        for number, end_s in enumerate(ends_s):
            since_s = _begin_s(since_s, end_s, resumed_s)
            rollouts, trainings = spans[job_id, number, "rollout"], spans[job_id, number, "training"]
            cold_s = [sum(phase.switch_s for phase in phases) for phases in (rollouts, trainings)]
            rollout_s = _covered_s(rollouts) - own.rollout_switch - cold_s[0]
            training_s = _covered_s(trainings) - own.training_switch - cold_s[1]
            switch_s = own.rollout_switch + own.training_switch + sum(cold_s)
            if job_id in stale:
                rollout_s, switch_s = 0.0, own.training_switch + cold_s[1]
            known = IterationParts(rollout_s, training_s, own.sync, switch_s, other=own.other)
            parts.append(known._replace(waiting=end_s - since_s - sum(known)))
            since_s = end_s
        by_job[job_id] = parts
    return by_job


def ends_of(run: Run) -> dict[str, list[float]]:
    """Return the ends of each job's iterations in a replay, in seconds: the end of the training plus the sync."""
    sync_s = {job.id: job.sync_s for job in run.scenario.jobs}
    ends: dict[str, dict[int, float]] = {job_id: {} for job_id in sync_s}
    for phase in run.phases:
        if phase.phase == "training":  # a training that a move interrupted is repeated, and the last one counts
            ends[phase.job_id][phase.iteration] = phase.end_s + sync_s[phase.job_id]
    return {job_id: [*own.values()] for job_id, own in ends.items()}


def _covered_s(phases: Iterable[PhaseRun]) -> float:
    """Return the seconds in which at least one of the phases ran. A tail and the phase that it left overlap on different nodes."""
    covered_s, until_s = 0.0, float("-inf")
    for phase in sorted(phases, key=lambda phase: phase.start_s):
        covered_s += max(0.0, phase.end_s - max(phase.start_s, until_s))
        until_s = max(until_s, phase.end_s)
    return covered_s
