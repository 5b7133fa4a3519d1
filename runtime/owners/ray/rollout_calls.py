"""Calls of jobs' processes to the coordinator about rollouts in progress."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_loop import RunLoop
from runtime.phases import Paused


class RolloutCalls:
    """Answers calls about rollouts: their progress, and where they stop or continue.

    Args:
        run: The run.
    """

    def __init__(self, run: RunLoop) -> None:
        self._run = run

    async def pause(self, handle: JobHandle, pauses: bool) -> None:
        """Pause or resume the rollouts of a job. A pause ends the wait for the permit of one.

        Args:
            handle: The job.
            pauses: Whether to pause them.
        """
        if pauses:
            handle.permits.pause_rollouts(Paused())
        else:
            handle.permits.resume_rollouts()

    async def progress(self, handle: JobHandle, done: int, total: int, tokens: int, who: str) -> None:
        """Record the progress of a phase, and report when a rollout reaches the threshold of migration.

        Args:
            handle: The job.
            done: Number of finished responses among those that `who` counts.
            total: Number of responses of the phase that `who` counts.
            tokens: Number of tokens that `who` has sampled.
            who: Name of the process that counts; the counts of a job's processes are added up.
        """
        run = self._run
        responses, total = handle.rollout_progress.count(who, done, total, tokens)
        if handle.rollout_progress.is_woken:
            handle.changed.notify_all()
        migration = run.scheduler.members.migration
        if run.log.problem is not None:
            return  # nothing can be recorded now, and another report will follow
        if (
            migration is None
            or "rollout" not in handle.permits.holds
            or handle.rollout_progress.past_threshold
            or not run.has_seat(handle)
        ):
            return
        if migration.at * total <= responses < total:
            handle.rollout_progress.pass_threshold()
            run.apply(Consequences((facts.Threshold(handle.id),)))

    async def changes(self, handle: JobHandle) -> bool:
        """Wait until a job's rollout has to stop, to use other parts of its nodes or because the responses of `wake` are done.

        Returns:
            False if the rollout is over or never has to stop, else True.
        """
        while "rollout" in handle.permits.holds:
            if self._run.scheduler.members.migration is None and handle.rollout_progress.wake is None:
                return False
            if handle.rollout_progress.used_parts != handle.rollout_progress.reported_parts or handle.rollout_progress.is_woken:
                return True
            await handle.changed.wait()
        return False

    async def wake(self, handle: JobHandle, responses: int | None) -> None:
        """Set the number of finished responses at which a job's rollout stops.

        Args:
            handle: The job.
            responses: Number of responses, or None to let it run to its end.
        """
        handle.rollout_progress.wake_at(responses)
        handle.changed.notify_all()

    async def parts(self, handle: JobHandle) -> tuple[int, ...]:
        """Return the numbers of the parts that a job's rollout may use from now on."""
        return handle.rollout_progress.report_parts()

    async def left(self, handle: JobHandle) -> None:
        """Report that a job's rollout has left the parts of its nodes that it may not use any more."""
        await self._run.written()
        if "rollout" in handle.permits.holds:
            self._run.apply(Consequences((facts.Shrunk(handle.id),)))
