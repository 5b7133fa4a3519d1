"""A run that was killed or stopped goes on: what the journal says is so."""

from __future__ import annotations

from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.nodes import POOLS
from runtime.execution.run_state import RunState
from runtime.journal.facts import Fact, Failed, Restarted, Restored
from runtime.journal.record import RunRecord, cold_starts_of
from runtime.journal.replay import restore
from runtime.owners.http.resuming import is_in_use


def go_on(run: RunState, lifecycle: JobLifecycle, record: RunRecord) -> None:
    """Groups and placements are as they were; every job that was placed begins there with its last checkpoint."""
    notes: list[Fact] = []
    run.cold_starts = cold_starts_of(record)
    lifecycle.node_changes.known = record.nodes | lifecycle.node_changes.known
    for handle in run.handles.values():
        if problem := run.problem_of(_recall, run, handle, record, notes):
            handle.gone = True
            notes.append(Failed(run.log.now(), handle.id, "resume", problem))
            run.log.say(f"{handle.id}: FAILED in resume: {problem}")
    for exceeded in record.exceeded:
        run.handles[exceeded.job_id].residency.exceeds = exceeded.why
    gone = [handle.id for handle in run.handles.values() if handle.gone]
    restored = Restored(run.log.now(), tuple(gone))
    again = restore(run.scheduler, record, restored.at_s, gone)
    run.log.write(*notes, restored, *run.scheduler.take_entries())
    run.tell()
    for job_id in again:
        lifecycle.enlist(run.handles[job_id])


def _recall(run: RunState, handle: JobHandle, record: RunRecord, notes: list[Fact]) -> None:
    """What the journal and the checkpoints know of a job."""
    state, job_id, folder = run.scheduler.state, handle.id, run.checkpoints(handle.id)
    handle.job = state.job(job_id) if state.knows(job_id) else record.jobs.get(job_id)
    handle.residency.waits = next((dict(fact.waits) for fact in record.profiled if fact.job.id == job_id), {})
    ever = (done.number + 1 for done in (*record.iterations, *record.repeated) if done.job_id == job_id)
    handle.done = max(ever, default=0)  # also where it went back before: what was told of it stays true
    over = {failed.job_id for failed in record.failed} | {cancelled.job_id for cancelled in record.cancelled}
    if handle.spec.is_attached:
        _recall_attached(run, handle, record, job_id in over | record.over_budget)
        return
    if handle.done == handle.spec.iterations or job_id in over | record.over_budget:
        handle.gone = True
        return
    handle.saved.recorded = {fact.iterations for fact in record.checkpointed if fact.job_id == job_id}
    resume = handle.saved.go_back(folder, handle.done)
    handle.iteration = handle.begins = resume.iterations
    if state.knows(job_id):
        _recall_work(run, handle)
        why = resume.problems[0] if resume.problems else "the run was resumed"
        notes.append(Restarted(run.log.now(), job_id, handle.begins, why))
        run.log.say(f"{job_id}: goes on at iteration {handle.begins + 1}")


def _recall_attached(run: RunState, handle: JobHandle, record: RunRecord, over: bool) -> None:
    """Of a job that runs elsewhere nothing is lost; one that has ended keeps its place while somebody may be using that."""
    job_id = handle.id
    done = any(fact.job_id == job_id and fact.done for fact in record.leases_ended)
    if done or ((over or handle.done == handle.spec.iterations) and not is_in_use(record, job_id)):
        handle.gone = True
        return
    handle.iteration = handle.begins = handle.done
    if run.scheduler.state.knows(job_id):
        _recall_work(run, handle)


def _recall_work(run: RunState, handle: JobHandle) -> None:
    state = run.scheduler.state
    row = state.row(handle.id)
    handle.permits.busy_s = {pool: float(getattr(state.jobs, f"{pool}_busy_s")[row]) for pool in POOLS}
