"""What the seconds of an iteration were: in a run, by its record, and in a replay, by its phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from rollmux_env.replay.run import PhaseRun, Run
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord


class Parts(NamedTuple):
    """Seconds of an iteration, from the end of the one before it (the first one: from when its rollout was ready) to its own.

    Attributes:
        rollout, training: the methods themselves.
        sync: weights on their way. switch: the permit's way, loading and offloading, and what a cold start takes beyond a warm one.
        waiting: for nodes. other: between phases: messages, checkpoints, steps of the job's own.

    The rollouts of a stale job go on beside its trainings: its iterations are trainings, and what these wait for, nodes or samples.
    """

    rollout: float = 0.0
    training: float = 0.0
    sync: float = 0.0
    switch: float = 0.0
    waiting: float = 0.0
    other: float = 0.0


def mean_parts(parts: Sequence[Parts]) -> Parts:
    """The mean of some iterations, at least one."""
    return Parts(*(fmean(column) for column in zip(*parts, strict=True)))


def slices_of(record: RunRecord, job_id: str, count: float = inf) -> dict[int, list[PhaseSlice]]:
    """The phases of a job by iteration, of the first so many, without those of its profile and those that failed."""
    slices: dict[int, list[PhaseSlice]] = defaultdict(list)
    for part in record.phases:
        if part.job_id == job_id and not part.profile and part.ok and 0 <= part.iteration < count:
            slices[part.iteration].append(part)
    return slices


def measured_parts(record: RunRecord, job_id: str) -> list[Parts]:
    """The iterations of a job in a run, in order."""
    slices, stale = slices_of(record, job_id), record.jobs[job_id].staleness > 0
    usual_s = _usual_s(part for own in slices.values() for part in own)
    sync_s = _sync_s(record, job_id)
    parts = []
    since_s: float | None = None
    for iteration in record.iterations_of(job_id):
        begin_s = iteration.start_s if since_s is None else since_s
        since_s = iteration.end_s
        own = [part for part in slices[iteration.number] if part.phase == "training" or not stale]
        method = {"rollout": 0.0, "training": 0.0}
        for part in own:
            if part.phase != "init":
                seconds = part.done_s - part.run_s
                method[part.phase] += min(seconds, usual_s.get(_kind(part), seconds)) if part.cold else seconds
        waiting_s = sum(max(0.0, part.start_s - (begin_s if stale else max(part.asked_s, begin_s))) for part in own)
        switch_s = sum(part.end_s - part.start_s for part in own) - sum(method.values())
        known = Parts(**method, sync=sync_s[iteration.number], switch=switch_s, waiting=waiting_s)
        parts.append(known._replace(other=iteration.end_s - begin_s - sum(known)))
    return parts


def _sync_s(record: RunRecord, job_id: str) -> dict[int, float]:
    """Seconds of the syncs of each iteration that had any."""
    seconds: dict[int, float] = defaultdict(float)
    for sync in record.syncs:
        if sync.job_id == job_id and not sync.profile:
            seconds[sync.iteration] += sync.end_s - sync.start_s
    return seconds


def _usual_s(parts: Iterable[PhaseSlice]) -> dict[tuple[str, int], float]:
    """Mean seconds of the method in warm phases of each kind."""
    warm: dict[tuple[str, int], list[float]] = defaultdict(list)
    for part in parts:
        if not part.cold:
            warm[_kind(part)].append(part.done_s - part.run_s)
    return {kind: fmean(seconds) for kind, seconds in warm.items()}


def _kind(part: PhaseSlice) -> tuple[str, int]:
    return part.phase, len(part.nodes)


def groups_of(record: RunRecord, job_id: str) -> list[int]:
    """The group in which each iteration of a job ended."""
    slices = slices_of(record, job_id)
    return [slices[one.number][-1].group if slices[one.number] else -1 for one in record.iterations_of(job_id)]


class Fixed(NamedTuple):
    """What a replay does not tell apart of an iteration: seconds of warm switches, by phase, of the sync, and between phases."""

    rollout_switch: float
    training_switch: float
    sync: float
    other: float


def replayed_parts(run: Run, fixed: dict[str, Fixed], begin_s: dict[str, float]) -> dict[str, list[Parts]]:
    """The iterations of each job in a replay, in order.

    Args:
        fixed: of each job. begin_s: when each was admitted.
    """
    spans: dict[tuple[str, int, str], list[PhaseRun]] = defaultdict(list)
    for phase in run.phases:
        spans[phase.job_id, phase.iteration, "training" if phase.phase == "training" else "rollout"].append(phase)
    by_job: dict[str, list[Parts]] = {}
    stale = {job.id for job in run.scenario.jobs if job.staleness}
    for job_id, ends_s in ends_of(run).items():
        own, since_s, parts = fixed[job_id], begin_s[job_id], []
        for number, end_s in enumerate(ends_s):
            rollouts, trainings = spans[job_id, number, "rollout"], spans[job_id, number, "training"]
            cold_s = [sum(phase.switch_s for phase in phases) for phases in (rollouts, trainings)]
            rollout_s = _covered_s(rollouts) - own.rollout_switch - cold_s[0]
            training_s = _covered_s(trainings) - own.training_switch - cold_s[1]
            switch_s = own.rollout_switch + own.training_switch + sum(cold_s)
            if job_id in stale:
                rollout_s, switch_s = 0.0, own.training_switch + cold_s[1]
            known = Parts(rollout_s, training_s, own.sync, switch_s, other=own.other)
            parts.append(known._replace(waiting=end_s - since_s - sum(known)))
            since_s = end_s
        by_job[job_id] = parts
    return by_job


def ends_of(run: Run) -> dict[str, list[float]]:
    """When each job's iterations ended in a replay: with their trainings, and their syncs behind them."""
    sync_s = {job.id: job.sync_s for job in run.scenario.jobs}
    ends: dict[str, dict[int, float]] = {job_id: {} for job_id in sync_s}
    for phase in run.phases:
        if phase.phase == "training":  # one that a move cut short is run again
            ends[phase.job_id][phase.iteration] = phase.end_s + sync_s[phase.job_id]
    return {job_id: [*own.values()] for job_id, own in ends.items()}


def _covered_s(phases: Iterable[PhaseRun]) -> float:
    """Seconds in which at least one of some phases ran: a tail and what it left overlap on different nodes."""
    covered_s, until_s = 0.0, float("-inf")
    for phase in sorted(phases, key=lambda phase: phase.start_s):
        covered_s += max(0.0, phase.end_s - max(phase.start_s, until_s))
        until_s = max(until_s, phase.end_s)
    return covered_s
