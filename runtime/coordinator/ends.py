"""The ways in which jobs leave their places or end, as transitions."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.coordinator.consequences import Consequences, Errand
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import RunState
from runtime.coordinator.slices import sides_of, slice_of
from runtime.jobside.messages import JobEnd, PhaseReport, Stopped
from runtime.journal.facts import Fact, JobFailed

EVICTED = "evicted"  # outcome of a job that gives up its place; it waits for another one before later arrivals
PARKED = "parked"  # outcome of a job that gives up its place to another job; it waits where its order puts it
OVER_BUDGET = "over_budget"  # outcome of a job whose budget is spent, and which keeps its place until its processes have ended


def left(handle: JobHandle, over_budget: bool = False, notes: tuple[Fact, ...] = ()) -> Consequences:
    """Let a job leave its place for good.

    The owner of an attached job may decide so before the last iteration.

    Args:
        handle: The job.
        over_budget: Whether it ends because its budget is exhausted.
        notes: Journal entries of phases that it does not complete.
    """
    number, iterations, attached = handle.iteration, handle.spec.iterations, handle.spec.is_attached
    early = attached and not over_budget and (number < iterations or bool(notes) or handle.ending.why is not None)
    if over_budget or attached:  # another one that has done its last iteration may be measured alone before it goes
        handle.close()
    handle.leave_place()
    lines: tuple[str, ...] = ()
    if over_budget:
        lines = (f"{handle.id}: its budget is spent after {number} of {iterations} iterations; it ends",)
    elif attached:
        lines = (f"{handle.id}: done after {number} iterations",)
    reports = (facts.Failed(handle.id), facts.Cleared(handle.id)) if early else (facts.Left(handle.id, over_budget),)
    return Consequences(reports, notes, lines)


def make_room(handle: JobHandle) -> Consequences:
    """Let a job on a drained node give up its place between two iterations. It continues elsewhere from its last checkpoint."""
    handle.begin_end(JobEnd(EVICTED, "step", "its node is drained"), again=True)
    return Consequences((facts.Failed(handle.id),))


def park(run: RunState, handle: JobHandle) -> Consequences:
    """Let a job that is parked give up its place between two iterations. It has left when its processes have ended."""
    other = run.scheduler.planner.parking.get(handle.id, "")
    handle.begin_end(JobEnd(PARKED, "step", f"parked for {other}" if other else "parked"), again=True)
    handle.permits.clear()
    return Consequences((facts.Absent(handle.id),), errands=(Errand(handle, ends=True),))


def end_over_budget(handle: JobHandle) -> Consequences:
    """End the processes of a job whose budget is spent, between two iterations. It leaves its place when they have ended."""
    handle.begin_end(JobEnd(OVER_BUDGET, "step", "its budget is spent"))
    handle.permits.clear()
    return Consequences((facts.Absent(handle.id),), errands=(Errand(handle, ends=True),))


def rest(handle: JobHandle, now_s: float) -> None:
    """End the processes of a job that has to wait; they are started again when it has a place."""
    if handle.processes.controller is not None and handle.life.is_alive:
        handle.begin_rest(now_s, Stopped("waits for nodes"))


def refused(handle: JobHandle, now_s: float, problem: str, where: str = "placement") -> Consequences:
    """End a job that can never be placed.

    Args:
        handle: The job.
        now_s: Present time, in seconds of the run.
        problem: Reason.
        where: Place of the failure, for the journal.
    """
    handle.begin_end(JobEnd("failed", where, problem))
    handle.close()
    handle.send_order(None, now_s)
    note = JobFailed(now_s, handle.id, where, problem)
    return Consequences((facts.Failed(handle.id),), (note,), (f"{handle.id}: FAILED in {where}: {problem}",))


def halted(handle: JobHandle, notes: tuple[Fact, ...] = ()) -> Consequences:
    """End a job with the run; it has its place when the run continues."""
    handle.close(halted=True)
    handle.leave_place()
    return Consequences((facts.Halted(handle.id),), notes)


def interrupted_slices(run: RunState, handle: JobHandle, now_s: float) -> tuple[Fact, ...]:
    """Return the journal entries of a job's unfinished phases. A sync has none."""
    slices = []
    for phase, hold in handle.permits.holds.items():
        report = PhaseReport(phase, False, hold.start_s, hold.start_s, now_s)
        spans = run.scheduler.members.spans(handle.id, now_s) if phase == "rollout" else ()
        slices += [slice_of(handle, report, now_s, spans, ok=False, side=side) for side in sides_of(handle, phase)]
    return tuple(slices)
