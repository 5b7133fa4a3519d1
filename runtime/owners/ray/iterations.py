"""How orders of jobs on Ray end: the job goes on, is profiled further, leaves its place, or is done."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.execution.job_handle import PROFILE, JobHandle
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import Checkpoint, Done
from runtime.execution.profiling import Profiling
from runtime.execution.run_state import Follows, RunState
from runtime.execution.solo import SoloIterations
from runtime.owners.protocol import Next, checkpointed, iterated, left, moved, must_settle, next_of


class Iterations:
    """Tells the run and jobs about iterations that are over.

    Args:
        run: whose jobs they are. lifecycle, profiling, solo: of it.
    """

    def __init__(self, run: RunState, lifecycle: JobLifecycle, profiling: Profiling, solo: SoloIterations) -> None:
        self._run = run
        self._lifecycle = lifecycle
        self._profiling = profiling
        self._solo = solo

    def completed(self, handle: JobHandle, done: Done) -> None:
        """A job has carried out its order."""
        if handle.iteration == PROFILE:
            self._passed(handle, done)
        elif handle.is_over:
            self._solo.iterated(handle)
        else:
            self._iterated(handle, done)

    def checkpointed(self, handle: JobHandle, checkpoint: Checkpoint) -> None:
        """What a job was after some iterations is on the disk: one that leaves its place and has waited for it does so."""
        follows = checkpointed(handle, checkpoint, self._run.log.now())
        if checkpoint.iterations == handle.iteration and self._leaves(handle):
            self._leave(handle, follows)
        else:
            self._run.follow(follows)

    def idle(self, handle: JobHandle) -> None:
        """Nothing is under way of a job that leaves its place, and it has no checkpoints: only its end is waited for."""
        if handle.ending.over_budget and self._leaves(handle):
            self._leave(handle, Follows())

    def _leaves(self, handle: JobHandle) -> bool:
        return handle.place.leaving and handle.ending.why is None and self._run.present(handle)

    def _leave(self, handle: JobHandle, follows: Follows) -> None:
        run = self._run
        handle.place.leaving = False
        match next_of(handle, handle.ending.over_budget, run.scheduler.is_to_go(handle.id)):
            case Next.OVER_BUDGET:
                self._end(handle, follows, over_budget=True)
            case Next.MOVE:
                handle.give_up()
                run.follow(follows.then(moved(handle)))
            case Next.MAKE_ROOM:
                run.follow(follows)
                self._lifecycle.make_room(handle)
            case _:
                run.follow(follows)
                run.order(handle)

    def _iterated(self, handle: JobHandle, done: Done) -> None:
        run, now_s = self._run, self._run.log.now()
        follows = iterated(handle, done, now_s, run.scheduler.state.job(handle.id).iterations)
        what = next_of(handle, run.scheduler.state.is_over_budget(handle.id, now_s), False)
        if what is Next.DONE:
            self._end(handle, follows)
        elif what is Next.OVER_BUDGET and not must_settle(handle, done):
            self._end(handle, follows, over_budget=True)
        elif what is Next.MOVE and done.movable and not done.keeps:
            run.follow(follows.then(moved(handle)))
        else:  # who leaves writes a checkpoint before that, and ends what is under way
            run.follow(follows)
            handle.ending.over_budget = what is Next.OVER_BUDGET
            moves = what is Next.MOVE and handle.place.moving
            goes = done.keeps and run.scheduler.is_to_go(handle.id)
            handle.place.leaving = handle.ending.over_budget or (done.movable and (moves or goes))
            if handle.ending.why is None:
                run.order(handle)

    def _end(self, handle: JobHandle, follows: Follows, over_budget: bool = False) -> None:
        self._run.follow(follows.then(left(handle, over_budget)))
        if over_budget or not self._solo.keeps(handle):
            handle.gone = True
            handle.tell(None, self._run.log.now())

    def _passed(self, handle: JobHandle, done: Done) -> None:
        """A pass of the profiler is over."""
        handle.profile.movable, handle.actors.alive = done.movable, done.alive
        handle.permits.began_s.clear()
        handle.profile.passes -= 1
        if handle.profile.passes or self._profiling.repeats(handle):
            handle.profile.passes = max(1, handle.profile.passes)
            self._run.order(handle)
            return
        profile_over = handle.profile.over
        more = self._profiling.next_round()
        handle.stand()
        self._run.tell(facts.Profiled(handle.id), *more)
        if profile_over is not None and not profile_over.done():
            profile_over.set_result(None)
        if self._profiling.is_crowded:
            self._lifecycle.rest(handle)
