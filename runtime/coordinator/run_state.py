"""The state of a run: its scheduler, its log and its jobs; and the one way in which something happens to it.

`tell` gives facts to the scheduler, writes down what follows from them, and then carries it out. Everything happens between two
`await`s, so that what is known is never half changed. It becomes durable behind that, in a thread: before anybody outside is told
of it, by an answer, an order or a process that is started or ended, `durable` or `written` is waited for. While the journal cannot
be written, what was decided is not carried out, and whoever has something to tell waits, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
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
from runtime.jobside.messages import End, Stopped
from runtime.journal.facts import Fact, Failed, Told
from runtime.journal.record import ColdStarts
from runtime.journal.write import Unwritable

_AGAIN_S = 1.0  # between attempts to write the journal


class Follows(NamedTuple):
    """What follows from something that an owner has said.

    Attributes:
        news: facts for the scheduler. notes: entries of the journal, in front of those that follow from the news. lines: for the
            user.
    """

    news: tuple[facts.Fact, ...] = ()
    notes: tuple[Fact, ...] = ()
    lines: tuple[str, ...] = ()

    def then(self, other: Follows) -> Follows:
        """This and something else, at once."""
        return Follows(self.news + other.news, self.notes + other.notes, self.lines + other.lines)


class Observer(Protocol):
    """Who watches a run, and changes nothing of it."""

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Facts are in the journal."""

    def on_command(self, command: Command) -> None:
        """A command of the scheduler's has been."""


class RunState:
    """A run: its scheduler, its jobs, its log, and what is still to be carried out.

    Args:
        plan: The plan of the run.
        log: The log of the run.
        state: State of the cluster when the run begins.
        nodes: Nodes of the cluster when the run begins.
        watches: Whether jobs are known anew when they take longer, and get a better place when they break their SLO; always so in
            a run that has jobs with shapes.
        observer: Observer of the run, or None.

    Attributes:
        scheduler: The scheduler of the run.
        handles: The jobs of the run, by id.
        cold_starts: Which cold starts of jobs are provisional.
        capacity: The nodes of the run, and which jobs they can hold.
        decisions: Carries out what the scheduler has decided.
        stopping: Whether the run stops.
        over: Future of the outcome of the run, or of the error that ends it.
        coming: Number of jobs that have not arrived at the policy or been given up yet.
        tasks: What is done meanwhile.
    """

    def __init__(
        self, plan: RunPlan, log: RunLog, state: State, nodes: NodePool, watches: bool, observer: Observer | None = None
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
        self.capacity = Capacity(plan, nodes)
        self.decisions = Decisions(
            plan, log, self.scheduler, self.handles, self.capacity, make_policy, lambda job_id: self.cold_starts.words(job_id)
        )
        self.stopping = False
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.coming = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self._observer = observer
        self._owed: list[Command] = []  # commands whose entries are not in the journal yet
        self._writable = asyncio.Event()

    def tell(self, *news: facts.Fact, notes: tuple[Fact, ...] = ()) -> None:
        """Something has happened: decide, write down, carry out.

        Args:
            notes: what else is to be in the journal of it, in front of what follows.
        """
        try:
            at_s, stopped = self.log.now(), self.scheduler.members.stopped
            step = self.scheduler.step(at_s, news)
            permits = tuple((one.job_id, one.phase) for one in step.commands if isinstance(one, commands.Grant))
            instant = [Told(at_s, news, permits, stopped)] if news or any(step) else []
            self.log.write(*notes, *instant, *step.entries)
            for entry in step.entries:
                self.decisions.announce(entry)
            self._owed += step.commands
            self._settle()
        except Exception as error:
            self.fail(error)
            raise

    def confine(self, handle: JobHandle, names: frozenset[str]) -> None:
        """A job may have these nodes alone from now on; it waits for a place, or is about to."""
        if self.scheduler.restrictions.confined.get(handle.id) != names:
            self.tell(facts.Confined(handle.id, names))

    def follow(self, follows: Follows) -> None:
        """What an owner of a job has said has this to follow."""
        for line in follows.lines:
            self.log.say(line)
        if follows.news:
            self.tell(*follows.news, notes=follows.notes)
        else:
            self.log.write(*follows.notes)

    def _settle(self) -> None:
        """Carry out what has been decided, if it is in the journal; a run that stops ends processes in any case."""
        if self.log.problem is not None and not self.stopping:
            return
        owed, self._owed = self._owed, []
        for command in owed:
            self.decisions.carry_out(command)
            if self._observer is not None:
                self._observer.on_command(command)

    async def durable(self) -> None:
        """Wait until all that was written down is on the disk, and somebody may be told of it.

        Raises:
            Unwritable: it cannot be written, and the run stops; one line.
        """
        await self.log.durable()

    async def written(self) -> None:
        """Wait until what has been decided about places is on the disk, and carried out, or the run stops. What jobs on Ray are
        told of their phases needs no more: no process of theirs outlives the coordinator."""
        if self.log.journal.is_bound:
            with contextlib.suppress(Unwritable):
                await self.log.durable()
        while self.log.problem is not None and not self.stopping:
            self._writable.clear()
            await self._writable.wait()

    async def write_again(self) -> None:
        """Try again and again to write what waits for room in the journal."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            self.log.write_again()

    def on_written(self, late: bool) -> None:
        """Facts are in the journal.

        Args:
            late: it could not be written before.
        """
        if late:
            for handle in self.handles.values():
                handle.permits.interrupt(self.log.now())
            self._settle()
            self._writable.set()

    def checkpoints(self, job_id: str) -> Path:
        """Folder of a job's."""
        return checkpoints_of(self.plan, job_id)

    def present(self, handle: JobHandle) -> bool:
        """Whether a job has a seat: what it says is of its own processes, and not of those that it had before."""
        return not handle.gone and handle.id in self.scheduler.members.seats

    def refuse(self, handle: JobHandle, problem: str, where: str = "placement") -> None:
        """A job cannot be placed at all. It ends as one that is done."""
        self.log.say(f"{handle.id}: FAILED in {where}: {problem}")
        handle.begin_end(End("failed", where, problem))
        handle.close()
        self.tell(facts.Failed(handle.id), notes=(Failed(self.log.now(), handle.id, where, problem),))
        handle.tell(None, self.log.now())

    def attempt(self, handle: JobHandle, where: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do something for one job; where that fails, this job alone does."""
        if problem := self.problem_of(work, *arguments):
            self.refuse(handle, problem, where)

    def problem_of(self, work: Callable[..., None], *arguments: Any) -> str | None:
        """Do something for one job; returns what goes wrong, if anything does."""
        try:
            work(*arguments)
        except (InvariantError, PlanError):  # of the whole run
            raise
        except Exception as error:
            if self.over.done():  # the journal cannot be written
                raise
            problem = one_line(" ".join(str(error).split()), 500) or "no message"
            return problem if isinstance(error, InputError) else f"{type(error).__name__}: {problem}"
        return None

    def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary."""
        if not self.stopping:
            self.stopping = True
            self._owed = [command for command in self._owed if isinstance(command, commands.Evict)]
            self.tell(facts.Stop())
            self.log.hurry()
            self._writable.set()
            for handle in self.handles.values():
                handle.refuse(Stopped("stops with the run"))
                if handle.actors.controller is None:
                    handle.profile.end()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something meanwhile; where it fails, the run does."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The run ends with an error."""
        if not self.over.done():
            self.over.set_exception(error)
