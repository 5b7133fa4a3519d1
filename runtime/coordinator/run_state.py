"""The state of a run: its scheduler, its log and its jobs, with one way to change it.

`inform_scheduler` gives facts to the scheduler, writes what follows to the journal, and carries it out. All of this happens between
two `await`s, so no task sees a partial change. It becomes durable afterwards, in a thread. Before anything outside is informed, by
an answer, an order or a process that is started or ended, `durable` or `written` must be awaited. While the journal cannot be
written, decisions are not carried out, and tasks that have facts wait too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.validation_errors import one_line
from runtime.coordinator.capacity import Capacity
from runtime.coordinator.decisions import Decisions, checkpoints_of
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.messages import JobEnd, Stopped
from runtime.journal.facts import Fact, JobFailed, SchedulerInformed
from runtime.journal.record import ColdStarts
from runtime.journal.write import Unwritable

_AGAIN_S = 1.0  # between attempts to write the journal


class Consequences(NamedTuple):
    """The consequences of an owner's message.

    Attributes:
        reports: Facts for the scheduler.
        entries: Journal entries, before those that follow from the reports.
        lines: Lines for the user.
    """

    reports: tuple[facts.Fact, ...] = ()
    entries: tuple[Fact, ...] = ()
    lines: tuple[str, ...] = ()

    def then(self, other: Consequences) -> Consequences:
        """Return these consequences followed by others, as one."""
        return Consequences(self.reports + other.reports, self.entries + other.entries, self.lines + other.lines)


class RunObserver(Protocol):
    """Read-only observer of a run."""

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Take facts that were written to the journal."""

    def on_command(self, command: Command) -> None:
        """Take a command of the scheduler that was carried out."""


class RunState:
    """The state of a run: its scheduler, its jobs, its log, and what remains to be carried out.

    Args:
        plan: Plan of the run.
        log: Log of the run.
        state: State of the cluster when the run begins.
        nodes: Nodes of the cluster when the run begins.
        watches: Whether jobs that take longer get a new profile, and jobs that break their SLO a better place. A run with shapes
            always does this.
        observer: Observer of the run, or None.

    Attributes:
        scheduler: Scheduler of the run.
        handles: Jobs of the run, by id.
        cold_starts: Record of the provisional cold starts of jobs.
        capacity: Nodes of the run, and the check whether jobs fit on them.
        decisions: Executor of the scheduler's commands.
        stopping: Whether the run stops.
        over: Future of the outcome of the run, or of the error that ends it.
        coming: Number of jobs that have neither arrived at the policy nor been given up.
        tasks: Background tasks of the run.
    """

    def __init__(
        self, plan: RunPlan, log: RunLog, state: State, nodes: NodePool, watches: bool, observer: RunObserver | None = None
    ) -> None:
        def make_policy() -> Any:
            return make_runnable(plan.policy, plan.seed)

        self.plan = plan
        self.log = log
        self.nodes = nodes
        dispatch = make_dispatch(plan.dispatch)
        watches = watches or any(spec.shapes for spec in plan.specs)
        self.scheduler = Scheduler(state, make_policy(), dispatch, nodes, make_policy if watches else None)
        self.handles = {spec.id: JobHandle(spec) for spec in plan.specs}
        self.cold_starts = ColdStarts()
        self.capacity = Capacity(plan, nodes, state)
        self.decisions = Decisions(
            plan, log, self.scheduler, self.handles, self.capacity, make_policy, lambda job_id: self.cold_starts.describe(job_id)
        )
        self.stopping = False
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.coming = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self._observer = observer
        self._pending: list[Command] = []  # commands to carry out when their entries are in the journal
        self._writable = asyncio.Event()

    def inform_scheduler(self, *reported: facts.Fact, entries: tuple[Fact, ...] = (), wakes: bool = False) -> None:
        """Let the scheduler decide about facts, write the entries to the journal, and carry the commands out.

        Args:
            *reported: Facts of this instant.
            entries: Further journal entries, before those of the scheduler.
            wakes: Whether the policy asked for this instant, which is then recorded even if nothing follows.
        """
        try:
            at_s, stopped = self.log.now(), self.scheduler.members.stopped
            step = self.scheduler.step(at_s, reported)
            permits = tuple((one.job_id, one.phase) for one in step.commands if isinstance(one, commands.Grant))
            instant = [SchedulerInformed(at_s, reported, permits, stopped)] if reported or wakes or any(step) else []
            self.log.write(*entries, *instant, *step.entries)
            for entry in step.entries:
                self.decisions.announce(entry)
            self._pending += step.commands
            self._carry_out_pending()
            admitted = [entry.job_id for entry in step.entries if isinstance(entry, Admitted)]
            if resuming := [facts.PauseEnded(job_id) for job_id in admitted if self.scheduler.state.is_paused(job_id)]:
                self.inform_scheduler(*resuming)  # the first iteration after a park takes longer instead
        except Exception as error:
            self.fail(error)
            raise

    def confine(self, handle: JobHandle, names: frozenset[str]) -> None:
        """Restrict a job to some nodes from now on. The job waits for a place, or is about to."""
        if self.scheduler.restrictions.confined.get(handle.id) != names:
            self.inform_scheduler(facts.Confined(handle.id, names))

    def apply(self, follows: Consequences) -> None:
        """Apply the consequences of an owner's message."""
        for line in follows.lines:
            self.log.say(line)
        if follows.reports:
            self.inform_scheduler(*follows.reports, entries=follows.entries)
        else:
            self.log.write(*follows.entries)

    def _carry_out_pending(self) -> None:
        """Carry out commands whose entries can be written; a run that stops ends processes in any case."""
        if self.log.problem is not None and not self.stopping:
            return
        owed, self._pending = self._pending, []
        for command in owed:
            self.decisions.carry_out(command)
            if self._observer is not None:
                self._observer.on_command(command)

    async def durable(self) -> None:
        """Wait until everything that was written is on disk, so that others may be informed.

        Raises:
            Unwritable: If it cannot be written, and the run stops; one line.
        """
        await self.log.durable()

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

    def checkpoints(self, job_id: str) -> Path:
        """Return the folder of a job's checkpoints."""
        return checkpoints_of(self.plan, job_id)

    def must_leave(self, handle: JobHandle) -> bool:
        """Return whether a job must leave its place at the end of its iteration."""
        return handle.life.is_moving or handle.life.is_yielding or self.scheduler.must_vacate(handle.id)

    def has_seat(self, handle: JobHandle) -> bool:
        """Return whether a job has a seat. Messages then come from its present processes, not from earlier ones."""
        return not handle.life.is_gone and handle.id in self.scheduler.members.seats

    def refuse(self, handle: JobHandle, problem: str, where: str = "placement") -> None:
        """End a job that can never be placed.

        Args:
            handle: The job.
            problem: Reason.
            where: Place of the failure, for the journal.
        """
        self.log.say(f"{handle.id}: FAILED in {where}: {problem}")
        handle.begin_end(JobEnd("failed", where, problem))
        handle.close()
        self.inform_scheduler(facts.Failed(handle.id), entries=(JobFailed(self.log.now(), handle.id, where, problem),))
        handle.send_order(None, self.log.now())

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
            self.inform_scheduler(facts.Stop())
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
