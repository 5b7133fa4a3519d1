"""Restoration of a run that continues, from its journal and the checkpoints of its jobs."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.profiling import enlisted
from runtime.coordinator.run_loop import RunLoop
from runtime.jobs.spec import CommandJob, OwnersJob
from runtime.journal.facts import Fact, JobFailed, JobRestarted, SchedulerRestored
from runtime.journal.leases import RecalledLeases
from runtime.journal.record import RunRecord, cold_starts_of
from runtime.journal.replay import restore
from runtime.machines.nodes import POOLS
from runtime.owners.protocol import left_before_start


def resume_run(run: RunLoop, node_changes: NodeChanges, record: RunRecord, leases: RecalledLeases) -> None:
    """Restore groups and placements; every placed job begins there with its last checkpoint.

    Args:
        run: The run, with the state of its record.
        node_changes: Nodes that have been added or lost.
        record: Record of the run that continues.
        leases: Leases in the journal.
    """
    notes: list[Fact] = []
    run.cold_starts = cold_starts_of(record)
    node_changes.known = record.nodes | node_changes.known
    for handle in run.handles.values():
        if problem := run.problem_of(_recall, run, handle, _own(record, handle), leases, notes):
            handle.close()
            notes.append(JobFailed(run.log.now(), handle.id, "resume", problem))
            run.log.say(f"{handle.id}: FAILED in resume: {problem}")
    for exceeded in record.memory_exceeded:
        run.handles[exceeded.job_id].resident_state.set_excess(exceeded.why)
    gone = [handle.id for handle in run.handles.values() if handle.life.is_gone]
    restored = SchedulerRestored(run.log.now(), tuple(gone), _staying(run, leases, gone))
    again = restore(run.scheduler, record, restored)
    run.log.write(*notes, restored, *run.scheduler.take_entries())
    run.apply(Consequences(), asks=True)
    for handle in [*run.handles.values()]:
        run.apply(left_before_start(run, handle, run.log.now()))
    for job_id in again:
        handle = run.handles[job_id]
        if _is_over(handle, _own(record, handle)):  # it was restored only because its nodes may still be in use
            handle.close()
        else:
            run.apply(enlisted(run, handle, run.log.now()))


def _staying(run: RunLoop, leases: RecalledLeases, gone: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of owners within an iteration after which their jobs are to move, by job id, without jobs that are gone."""
    moving = [job_id for job_id in run.scheduler.state.pauses.ending(inf) if job_id not in gone]
    lasting = {job_id: lease.record for job_id, lease in leases.last.items() if lease.record.end is None}
    within = {job_id: record for job_id, record in lasting.items() if not record.turns.is_between}
    return {job_id: within[job_id].owner.nodes for job_id in moving if job_id in within}


def _own(record: RunRecord, handle: JobHandle) -> RunRecord:
    return record.by_job.get(handle.id, RunRecord(record.started))


def _is_over(handle: JobHandle, record: RunRecord) -> bool:
    """Return whether a job has ended, or has no iterations left. The owner of an attached job decides when it is complete."""
    ended = record.given_up | record.over_budget | record.reported_done
    return handle.id in ended or handle.spec.has_done(handle.counts.done)


def _recall(run: RunLoop, handle: JobHandle, record: RunRecord, leases: RecalledLeases, notes: list[Fact]) -> None:
    """Restore a job from the journal and its checkpoints. An attached job loses no work.

    An attached job that has ended keeps its place while a process may be using it. For a command that is until it has been ended.
    """
    state, job_id, attached = run.scheduler.state, handle.id, handle.spec.is_attached
    handle.set_job(state.job(job_id) if state.knows(job_id) else record.jobs.get(job_id))
    handle.resident_state.set_levels(next((fact.waits for fact in record.profiled if fact.job.id == job_id), {}))
    handle.counts.restore_done(record.most_done(job_id))  # repeated iterations count: reports of them have been sent
    is_over, why = _is_over(handle, record), "the run was resumed"
    if attached:
        handle.counts.resume(record.done[job_id])
        may_use = isinstance(handle.spec, CommandJob) or leases.are_in_use(job_id)
        is_over = is_over and not (state.is_running(job_id) and may_use)
    if is_over:
        handle.close()
        return
    if not attached:
        handle.checkpoints.restore_recorded(record.checkpoints_of(job_id), record.checkpoint_s(job_id))
        resume = handle.checkpoints.go_back(run.checkpoints(job_id), handle.counts.done)
        handle.counts.resume(resume.iterations)
        why = resume.problems[0] if resume.problems else why
    if not state.knows(job_id):
        return
    _recall_place(run, handle, leases)
    if not attached:
        notes.append(JobRestarted(run.log.now(), job_id, handle.counts.begins, why))
        run.log.say(f"{job_id}: continues at iteration {handle.counts.begins + 1}")


def _recall_place(run: RunLoop, handle: JobHandle, leases: RecalledLeases) -> None:
    """Restore whether a job has a place, waits for one or is parked, and the node-seconds since its last progress."""
    state, job_id = run.scheduler.state, handle.id
    row = state.row(job_id)
    since_s = leases.last[job_id].busy_s if job_id in leases.last else {}
    busy_s: dict[str, float] = {
        pool: float(getattr(state.tables.jobs, f"{pool}_busy_s")[row]) + since_s.get(pool, 0.0) for pool in POOLS
    }
    if job_id in state.stays.parked:
        handle.wait_parked(busy_s)
    elif not (state.is_running(job_id) or job_id in state.waiting):  # it has given up its place, and has not got another one
        handle.place.set_awaits_owner(isinstance(handle.spec, OwnersJob))
    else:
        handle.permits.reset_busy(busy_s)
        handle.arrive()
