"""How iterations of jobs end: what is recorded of them, and whether the job goes on, moves, or is done."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.execution.job_handle import PROFILE, JobHandle
from runtime.execution.job_log import SHOWN, iteration_line, tell_of
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import Checkpoint, Done
from runtime.execution.profiling import Profiling
from runtime.execution.run_state import RunState
from runtime.execution.solo import SoloIterations
from runtime.facts import Checkpointed, Fact, Iteration


class IterationEnds:
    """Tells the scheduler, the journal and jobs about iterations that are over.

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
            handle.movable, handle.alive = done.movable, done.alive
            handle.began_s.clear()
            handle.passes -= 1
            if handle.passes or self._profiling.repeats(handle):
                handle.passes = max(1, handle.passes)
                self._run.order(handle)
            else:
                profile_over = handle.profile_over
                more = self._profiling.next_round()
                handle.stand()
                self._run.tell(facts.Profiled(handle.id), *more)
                if profile_over is not None and not profile_over.done():
                    profile_over.set_result(None)
                if self._profiling.is_crowded:
                    self._lifecycle.rest(handle)
        elif handle.is_over:
            self._solo.iterated(handle)
        else:
            self._iterated(handle, done)

    def record(self, handle: JobHandle, done: Done) -> tuple[facts.Iterated | None, tuple[Fact, ...]]:
        """An iteration is over and counts; what the scheduler (but of a guest) and the journal are to be told of it."""
        run, number, now_s = self._run, handle.iteration, self._run.log.now()
        began_s = handle.began_s.pop(number, 0.0 if handle.spec.staleness else now_s)
        if handle.spec.staleness:
            began_s, handle.follows_s = max(began_s, handle.follows_s), now_s
        interrupted, handle.interrupted = handle.interrupted, False
        notes: tuple[Fact, ...] = (Iteration(handle.id, number, began_s, now_s, done.metrics, interrupted),)
        if done.checkpoint is not None:
            notes += self._recorded(handle, done.checkpoint, now_s)
        shown = "".join(f", {name} {done.metrics[name]:.4g}" for name in SHOWN if name in done.metrics)
        run.log.say(f"{handle.id}: iteration {number + 1} of {handle.spec.iterations}, {now_s - began_s:.2f} s{shown}")
        if handle.spec.is_attached:
            line = iteration_line(number + 1, handle.spec.iterations, now_s - began_s, done.metrics)
            tell_of(run.plan.folder, handle.id, line)
        for line in done.warnings:
            run.log.say(f"{handle.id}: WARNING: {line}")
        handle.iteration = number + 1
        if handle.iteration > handle.done:
            handle.done, handle.deaths = handle.iteration, 0
        if handle.job is None:
            return None, notes
        progress = handle.so_far(run.scheduler.state.job(handle.id).iterations)
        return facts.Iterated(progress, None if interrupted else now_s - began_s, done.movable), notes

    def checkpointed(self, handle: JobHandle, checkpoint: Checkpoint) -> None:
        """What a job was after some iterations is on the disk: one that leaves its place and has waited for it does so."""
        run = self._run
        notes = self._recorded(handle, checkpoint, run.log.now())
        leaves = handle.leaving and checkpoint.iterations == handle.iteration and handle.end is None and run.present(handle)
        if leaves and handle.over_budget:
            self.over_budget(handle, (), notes)
        elif leaves and handle.moving:
            handle.leaving = False
            handle.give_up()
            run.tell(facts.Vacated(handle.id), facts.Resumed(handle.id), notes=notes)  # its new place says when it goes on
        elif leaves:
            handle.leaving = False
            run.log.write(*notes)
            if run.scheduler.is_to_go(handle.id):
                self._lifecycle.make_room(handle)
            else:
                run.order(handle)
        else:
            run.log.write(*notes)

    def _recorded(self, handle: JobHandle, checkpoint: Checkpoint, at_s: float) -> tuple[Fact, ...]:
        """The fact of a checkpoint, which the job goes on from after a restart."""
        if handle.full is not None:
            self._run.log.say(f"{handle.id}: its checkpoint is written")
        handle.full, handle.checkpoint, handle.keeping_s = None, checkpoint.folder, checkpoint.seconds
        handle.recorded.add(checkpoint.iterations)
        return (Checkpointed(at_s, handle.id, checkpoint.iterations, checkpoint.seconds, checkpoint.gb),)

    def _iterated(self, handle: JobHandle, done: Done) -> None:
        """An iteration is over: the job goes on, moves, or is done."""
        run = self._run
        iterated, notes = self.record(handle, done)
        assert iterated is not None
        if handle.iteration == handle.spec.iterations:
            handle.stand()
            run.tell(iterated, facts.Left(handle.id), notes=notes)
            if not self._solo.keeps(handle):
                handle.gone = True
                handle.tell(None, run.log.now())
        elif run.scheduler.state.is_over_budget(handle.id, run.log.now()):
            if done.keeps or handle.spec.staleness:  # it ends when it has written its last checkpoint, and nothing is under way
                run.tell(iterated, notes=notes)
                handle.over_budget = handle.leaving = True
                if handle.end is None:
                    run.order(handle)
            else:
                self.over_budget(handle, (iterated,), notes)
        elif handle.moving and done.movable and not done.keeps:  # its new place says when it goes on
            run.tell(iterated, facts.Vacated(handle.id), facts.Resumed(handle.id), notes=notes)
        else:
            leaves = handle.moving and done.movable
            run.tell(iterated, notes=notes)
            goes = done.keeps and done.movable and run.scheduler.is_to_go(handle.id)
            handle.leaving = (leaves and handle.moving) or goes
            if handle.end is None:
                run.order(handle)

    def over_budget(self, handle: JobHandle, news: tuple[facts.Fact, ...], notes: tuple[Fact, ...]) -> None:
        """A job ends, since its budget is spent."""
        run = self._run
        run.log.say(f"{handle.id}: its budget is spent after {handle.iteration} of {handle.spec.iterations} iterations; it ends")
        handle.gone = True
        handle.stand()
        run.tell(*news, facts.Left(handle.id, over_budget=True), notes=notes)
        handle.tell(None, run.log.now())
