"""The event loop's side of a run: the clock, the journal, the tasks, and the one way in which something happens.

`apply` writes what follows from an event to the journal, and carries it out. All of this happens between two `await`s, so no task
sees a partial change. It becomes durable afterwards, in a thread. Before anything outside is informed, by an answer, an order or a
process that is started or ended, `log.durable` or `written` must be awaited. While the journal cannot be written, decisions are not
carried out, and tasks that have facts wait too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.validation_errors import one_line
from runtime.coordinator.consequences import Consequences, Errand
from runtime.coordinator.ends import refused
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_plan import RunPlan
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import TaskJob
from runtime.jobside.messages import Stopped
from runtime.journal.facts import Fact
from runtime.journal.write import Unwritable

_AGAIN_S = 1.0  # between attempts to write the journal


class RunObserver(Protocol):
    """Read-only observer of a run."""

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Take facts that were written to the journal."""

    def on_command(self, command: Command) -> None:
        """Take a command of the scheduler that was carried out."""


class RunLoop(RunState):
    """A run in its event loop.

    Args:
        plan: Plan of the run.
        log: Log of the run.
        state: State of the cluster when the run begins.
        nodes: Nodes of the cluster when the run begins.
        keeps_running: Whether the run continues when all of its jobs have ended.
        observer: Observer of the run, or None.

    Attributes:
        errands: Tasks for `JobLifecycle`.
        over: Future of the outcome of the run, or of the error that ends it.
        quiet: Event that all present jobs have done their last iteration and can be measured alone.
        watched: Jobs whose processes have not ended, maintained by `JobLifecycle`.
        tasks: Background tasks of the run.
    """

    def __init__(
        self, plan: RunPlan, log: RunLog, state: State, nodes: NodePool, keeps_running: bool, observer: RunObserver | None = None
    ) -> None:
        super().__init__(plan, state, nodes, keeps_running)
        self.log = log
        self.errands = asyncio.Queue[Errand]()
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.quiet, self.watched = asyncio.Event(), set[JobHandle]()
        self.tasks: set[asyncio.Task[None]] = set()
        self._observer = observer
        self._pending: list[Command] = []  # commands to carry out when their entries are in the journal
        self._writable = asyncio.Event()

    def apply(self, happened: Consequences, asks: bool = False, wakes: bool = False) -> None:
        """Let the scheduler decide about what has happened, write the entries to the journal, and carry the decisions out.

        Args:
            happened: Facts of this instant, with their journal entries, lines and errands.
            asks: Whether the scheduler is asked even if there are no facts for it.
            wakes: Whether the policy asked for this instant.
        """
        try:
            step = self.step(self.log.now(), happened, asks, wakes)
            self.log.write(*step.entries)
            self._emit(step.lines)
            self._pending += step.commands
            self._carry_out_pending()
            self._emit((), step.errands)
        except Exception as error:
            self.fail(error)
            raise

    def _carry_out_pending(self) -> None:
        """Carry out commands whose entries can be written; a run that stops ends processes in any case."""
        if self.log.problem is not None and not self.stopping:
            return
        owed, self._pending = self._pending, []
        for command in owed:
            follows = self.carry_out(command, self.log.now())
            self._emit(follows.lines, follows.errands)
            if self._observer is not None:
                self._observer.on_command(command)

    def _emit(self, lines: tuple[str, ...], errands: tuple[Errand, ...] = ()) -> None:
        for line in lines:
            self.log.say(line)
        for errand in errands:
            self.errands.put_nowait(errand)

    def check_end(self) -> None:
        """End the run if no job is left, or if the jobs that are left would wait forever."""
        present = [handle for handle in self.handles.values() if not handle.life.is_gone]
        if self.over.done():
            return
        if self.stopping:
            if not self._writes_models() and all(handle.is_at_rest for handle in present):
                self.over.set_result("stopped")
        elif self.coming:
            return
        elif self.scheduler.stuck:
            self._give_up_waiting()
        elif not present:
            if not self.keeps_running and not self._writes_models():
                self.over.set_result("done")
        elif self.watched == {*present} and all(handle.is_over for handle in present):
            self.quiet.set()

    def _give_up_waiting(self) -> None:
        """Handle a queue that fits nowhere while no job runs: fail the run, or refuse the first job if more jobs may come.

        In a service, jobs that a quota bars wait for the next month, or for another quota.
        """
        state, quotas = self.scheduler.state, Quotas(self.scheduler.state)
        if not self.keeps_running:
            self.fail(PlanError(waits_for_ever(state)))
            return
        job_id = next((job_id for job_id in state.waiting if not quotas.bars(state.job(job_id))), None)
        if job_id is not None:
            self.refuse(self.handles[job_id], waits_for_ever(state, job_id))
            self.check_end()

    def _writes_models(self) -> bool:
        """Return whether the process of a completed job may still be writing its model."""
        return self.plan.models and any(handle.life.is_gone and isinstance(handle.spec, TaskJob) for handle in self.watched)

    async def written(self) -> None:
        """Wait until decisions about places are on disk and carried out, or the run stops.

        Messages to jobs on Ray about their phases need no more: none of their processes outlives the coordinator.
        """
        if self.log.journal.is_bound:
            with contextlib.suppress(Unwritable):
                await self.log.durable()
        while self.log.problem is not None and not self.stopping:
            self._writable.clear()
            await self._writable.wait()

    async def write_again(self) -> None:
        """Try every second to write what waits for room in the journal, until cancelled."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            self.log.write_again()

    def on_written(self, late: bool) -> None:
        """Continue after a commit.

        Args:
            late: Whether the journal could not be written before.
        """
        if late:
            for handle in self.handles.values():
                handle.permits.interrupt(self.log.now())
            self._carry_out_pending()
            self._writable.set()

    def refuse(self, handle: JobHandle, problem: str, where: str = "placement") -> None:
        """End a job that can never be placed.

        Args:
            handle: The job.
            problem: Reason.
            where: Place of the failure, for the journal.
        """
        self.apply(refused(handle, self.log.now(), problem, where))

    def attempt(self, handle: JobHandle, where: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do work for one job; if it fails, only this job is refused.

        Args:
            handle: The job.
            where: Place of a failure, for the journal.
            work: Function to call.
            *arguments: Arguments of the function.
        """
        if problem := self.problem_of(work, *arguments):
            self.refuse(handle, problem, where)

    def problem_of(self, work: Callable[..., None], *arguments: Any) -> str | None:
        """Do work for one job, and return a line about its failure, or None.

        Args:
            work: Function to call.
            *arguments: Arguments of the function.
        """
        try:
            work(*arguments)
        except (InvariantError, PlanError):  # these end the whole run
            raise
        except Exception as error:
            if self.over.done():  # the journal cannot be written
                raise
            problem = one_line(" ".join(str(error).split()), 500) or "no message"
            return problem if isinstance(error, InputError) else f"{type(error).__name__}: {problem}"
        return None

    def stop(self) -> None:
        """Give no more permits: every job stops at its next phase boundary."""
        if not self.stopping:
            self.stopping = True
            self._pending = [command for command in self._pending if isinstance(command, commands.Evict)]
            self.apply(Consequences((facts.Stop(),)))
            self.log.stop_waiting()
            self._writable.set()
            for handle in self.handles.values():
                handle.refuse(Stopped("stops with the run"))
                if handle.processes.controller is None:
                    handle.profile.end()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; if it fails, the run fails."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if not self.over.done():
            self.over.set_exception(error)
            self.over.exception()  # else asyncio logs it if the run ends before it waits for its outcome
