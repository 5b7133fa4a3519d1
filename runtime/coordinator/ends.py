"""Functions that let jobs leave their places, and the decision when a run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rollmux_env.errors import PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.quotas import Quotas
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import Consequences, RunState
from runtime.coordinator.slices import sides_of, slice_of
from runtime.jobs.spec import TaskJob
from runtime.jobside.messages import JobEnd, PhaseReport, Stopped
from runtime.journal.facts import Fact

EVICTED = "evicted"  # outcome of a job that gives up its place; it waits for another one before later arrivals
PARKED = "parked"  # outcome of a job that gives up its place to another job; it waits where its order puts it


def left(handle: JobHandle, over_budget: bool = False, notes: tuple[Fact, ...] = ()) -> Consequences:
    """Let a job leave its place for good, and return what follows.

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


def make_room(run: RunState, handle: JobHandle) -> None:
    """Let a job on a drained node give up its place between two iterations. It continues elsewhere from its last checkpoint."""
    handle.begin_end(JobEnd(EVICTED, "step", "its node is drained"), again=True)
    run.inform_scheduler(facts.Failed(handle.id))


def park(run: RunState, handle: JobHandle) -> None:
    """Let a job that is parked give up its place between two iterations. It has left when its processes have ended."""
    other = run.scheduler.planner.parking.get(handle.id, "")
    handle.begin_end(JobEnd(PARKED, "step", f"parked for {other}" if other else "parked"), again=True)
    handle.permits.clear()
    run.inform_scheduler(facts.Absent(handle.id))
    run.decisions.evict(handle)


def rest(run: RunState, handle: JobHandle) -> None:
    """End the processes of a job that has to wait; they are started again when it has a place."""
    if handle.processes.controller is not None and handle.life.is_alive:
        handle.begin_rest(run.log.now(), Stopped("waits for nodes"))


def interrupted_slices(run: RunState, handle: JobHandle) -> tuple[Fact, ...]:
    """Return the journal entries of a job's unfinished phases. A sync has none."""
    now_s = run.log.now()
    slices = []
    for phase, hold in handle.permits.holds.items():
        report = PhaseReport(phase, False, hold.start_s, hold.start_s, now_s)
        spans = run.scheduler.members.spans(handle.id, now_s) if phase == "rollout" else ()
        slices += [slice_of(handle, report, now_s, spans, ok=False, side=side) for side in sides_of(handle, phase)]
    return tuple(slices)


class RunEnd:
    """The decision when a run is over.

    Args:
        run: State of the run.
        keeps_running: Whether the run continues when all of its jobs have ended.

    Attributes:
        quiet: Event that all present jobs have done their last iteration and can be measured alone.
        watched: Jobs whose processes have not ended, maintained by `JobLifecycle`.
    """

    def __init__(self, run: RunState, keeps_running: bool) -> None:
        self._run, self._keeps_running = run, keeps_running
        self.quiet = asyncio.Event()
        self.watched = set[JobHandle]()

    def check(self) -> None:
        """End the run if no job is left, or if the jobs that are left would wait forever."""
        run = self._run
        present = (handle for handle in run.handles.values() if not handle.life.is_gone)
        if run.over.done():
            return
        if run.stopping:
            if not self._writes_models() and all(handle.is_at_rest for handle in present):
                run.over.set_result("stopped")
        elif run.coming:
            return
        elif run.scheduler.stuck:
            self._give_up_waiting()
        elif all(handle.life.is_gone for handle in run.handles.values()):
            if not self._keeps_running and not self._writes_models():
                run.over.set_result("done")
        elif self._has_only_done_jobs(present):
            self.quiet.set()

    def _has_only_done_jobs(self, present: Iterable[JobHandle]) -> bool:
        """Return whether there are jobs, and all of them have processes and have done their last iteration."""
        return bool(self.watched) and self.watched == {*present} and all(handle.is_over for handle in self.watched)

    def _give_up_waiting(self) -> None:
        """Handle a queue that fits nowhere while no job runs: fail the run, or refuse the first job if more jobs may come.

        In a service, jobs that a quota bars wait for the next month, or for another quota.
        """
        run, state = self._run, self._run.scheduler.state
        if not self._keeps_running:
            run.fail(PlanError(waits_for_ever(state)))
            return
        quotas = Quotas(state)
        job_id = next((job_id for job_id in state.waiting if not quotas.bars(state.job(job_id))), None)
        if job_id is not None:
            run.refuse(run.handles[job_id], waits_for_ever(state, job_id))
            self.check()

    def _writes_models(self) -> bool:
        """Return whether the process of a completed job may still be writing its model."""
        return self._run.plan.models and any(handle.life.is_gone and isinstance(handle.spec, TaskJob) for handle in self.watched)
