"""The decision when a run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rollmux_env.errors import PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scheduler.quotas import Quotas
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_loop import RunLoop
from runtime.jobs.spec import TaskJob


class RunEnd:
    """The decision when a run is over.

    Args:
        run: The run.
        keeps_running: Whether the run continues when all of its jobs have ended.

    Attributes:
        quiet: Event that all present jobs have done their last iteration and can be measured alone.
        watched: Jobs whose processes have not ended, maintained by `JobLifecycle`.
    """

    def __init__(self, run: RunLoop, keeps_running: bool) -> None:
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
