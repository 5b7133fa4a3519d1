"""Failures of jobs, and their restarts, as transitions. A failed job's processes end first; then it arrives again, or has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from rollmux_env.scheduler import facts
from runtime.checkpoints import ResumePoint
from runtime.coordinator.consequences import Consequences, Errand
from runtime.coordinator.ends import EVICTED, OVER_BUDGET, PARKED, halted, interrupted_slices, left, refused
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiling import arrival
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import OwnersJob
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import Fact, JobCancelled, JobFailed, JobRestarted
from runtime.machines.nodes import POOLS

DEATHS = 3  # consecutive deaths without a completed iteration after which a job is given up


def lost(run: RunState, machines: Collection[str]) -> Consequences:
    """Report the nodes of machines that are gone."""
    names = sorted(node.name for node in run.capacity.nodes() if node.machine in machines)
    reports = (facts.Lost(frozenset(names)),) if names else ()
    return Consequences(reports, lines=tuple(f"{name} has gone" for name in names))


def failed(
    run: RunState, handle: JobHandle, end: JobEnd, again: bool, dead_machines: Collection[str], now_s: float
) -> Consequences:
    """Begin to end the processes of a job that has failed, has lost a process, or hangs.

    Args:
        run: State of the run.
        handle: The job, which is alive.
        end: Outcome and reason.
        again: Whether its remains are ended and the job arrives again.
        dead_machines: Machines that are gone.
        now_s: Present time, in seconds of the run.
    """
    handle.begin_end(end, again)
    # The owner of an attached job may outlive this coordinator: the next one has to know that the job has failed.
    notes = () if again or not handle.spec.is_attached else (JobFailed(now_s, handle.id, end.where, end.problem, end.details),)
    if handle.id in run.scheduler.members.seats:
        return Consequences((facts.Failed(handle.id),), notes).then(lost(run, dead_machines))
    ends = Consequences(entries=notes, errands=(Errand(handle, ends=True),))  # the scheduler has no nodes of it
    return lost(run, dead_machines).then(ends)


def cancelled(handle: JobHandle, now_s: float) -> Consequences:
    """Begin to end a job in whatever phase it is."""
    reports = () if handle.ending.why is not None else (facts.Failed(handle.id),)
    handle.begin_end(JobEnd("cancelled"))
    return Consequences(reports, (JobCancelled(now_s, handle.id),), (f"{handle.id}: cancelled",))


def out_of_memory(run: RunState, handle: JobHandle, end: JobEnd) -> JobEnd:
    """Return how a job ends that had too little memory of a GPU: it is made again if the state of others can leave."""
    pool = next((pool for pool in POOLS if pool == end.where and pool in handle.permits.holds), None)
    beside = run.residents.record_out_of_memory(handle, pool) if pool else ()
    if pool is None or not beside:
        return end
    names = ", ".join(node.name for node in handle.place.nodes_of(pool))
    problem = f"out of memory in its {pool} on {names}, beside state of {', '.join(beside)}, which leaves"
    return replace(end, outcome="died", problem=problem)


def cleared(run: RunState, handle: JobHandle, resume: ResumePoint, clock: Callable[[], float]) -> Iterator[Consequences]:
    """Restart a job whose processes have ended, or let it end. The consequences of each instant are yielded.

    Args:
        run: State of the run.
        handle: The job, which is not gone.
        resume: Checkpoint from which it continues.
        clock: Function that returns the present time, in seconds of the run. Each instant has its own.
    """
    now_s = clock()
    slices = interrupted_slices(run, handle, now_s)
    if run.stopping and handle.spec.is_attached:
        yield halted(handle)  # it has its nodes again when the run continues
    elif run.stopping and handle.ending.restarts:
        yield halted(handle, slices)
    elif handle.ending.why is not None and handle.ending.why.outcome == OVER_BUDGET:
        follows = left(handle, over_budget=True)
        if not _has_kept_place(run, handle, OVER_BUDGET):  # a node was lost meanwhile, and the scheduler has evicted the job
            follows = follows._replace(reports=(*follows.reports, facts.Cleared(handle.id)))
        yield follows
    elif handle.ending.restarts and not handle.is_over and (_deaths(handle) < DEATHS or isinstance(handle.spec, OwnersJob)):
        follows, problem = _restarted(run, handle, resume, slices, now_s)
        yield follows
        if problem is not None:
            yield refused(run.handles[handle.id], clock(), problem)
    else:
        yield _given_up(run, handle, slices, now_s)


def _given_up(run: RunState, handle: JobHandle, slices: tuple[Fact, ...], now_s: float) -> Consequences:
    """End a job that has failed for good, or whose owner has reported its completion late."""
    end, notes, lines = handle.ending.why, slices, []
    assert end is not None
    if handle.is_over:
        lines = [f"{handle.id}: could not be measured alone: {end.problem}"]
    elif end.outcome not in ("cancelled", "done"):
        problem = end.problem
        if handle.ending.restarts:
            lines = [f"{handle.id}: {problem}; is given up"]
            problem = f"{problem} ({DEATHS} times in a row without an iteration done)"
        if handle.ending.restarts or not handle.spec.is_attached:  # else it was noted at once
            notes += (JobFailed(now_s, handle.id, end.where, problem, end.details),)
        lines += [f"{handle.id}: FAILED in {end.where}: {problem}"]
    handle.close()
    handle.leave_place()
    waits = handle.id in run.scheduler.state.waiting
    return Consequences((facts.Cleared(handle.id), *([facts.Failed(handle.id)] if waits else [])), notes, tuple(lines))


def _restarted(
    run: RunState, handle: JobHandle, resume: ResumePoint, slices: tuple[Fact, ...], now_s: float
) -> tuple[Consequences, str | None]:
    """Restart a job that has died; it arrives again if it had a place, and waits if it is parked.

    Returns:
        What follows, and why the job must then be refused, or None.
    """
    job_id, why, begins = handle.id, handle.ending.why, resume.iterations
    assert why is not None
    parked = _has_kept_place(run, handle, PARKED)
    note = JobRestarted(now_s, job_id, begins, resume.problems[0] if resume.problems else why.problem)
    goes_back = not handle.spec.is_attached and not (parked and begins == handle.iteration)  # owners go back themselves
    follows = Consequences(
        (), (*slices, note) if goes_back else slices, (f"{job_id}: {why.problem}; continues at iteration {begins + 1}",)
    )
    successor = handle.successor(begins, _deaths(handle), note.why)
    placed, waits = run.scheduler.state.is_running(job_id), job_id in run.scheduler.state.waiting
    busy_s = handle.permits.busy_s
    handle.close()
    handle.leave_place()
    run.handles[job_id] = successor
    if parked:
        successor.wait_parked(busy_s)
        return follows._replace(reports=(facts.YieldedPlace(job_id),)), None
    if waits:  # it stays in the queue of the policy
        successor.arrive()
    reports: tuple[facts.Fact, ...] = (facts.Cleared(job_id),)
    problem = None
    if placed and successor.job is not None and not successor.place.awaits_owner:
        problem = run.capacity.problem_of_placing(successor.spec) or run.capacity.too_large(successor.job)
        if problem is None:
            reports += arrival(run, successor, now_s, why.outcome == EVICTED)
    return follows._replace(reports=reports), problem


def _has_kept_place(run: RunState, handle: JobHandle, outcome: str) -> bool:
    """Return whether a job that ends with an outcome still has its place, of which no node was lost."""
    seat = run.scheduler.members.seats.get(handle.id)
    return handle.ending.why is not None and handle.ending.why.outcome == outcome and seat is not None and not seat.failed


def _deaths(handle: JobHandle) -> int:
    """Return the number of consecutive deaths of a job that is ending. One that gives up its place has not died."""
    assert handle.ending.why is not None
    return handle.ending.deaths + (handle.ending.why.outcome not in (EVICTED, PARKED))
