"""The state of a run: its scheduler, its log and its jobs; and the one way in which something happens to it.

`tell` gives facts to the scheduler, writes down what follows from them, and then carries it out. Everything happens between two
`await`s, so that what is known is never half changed. It becomes durable behind that, in a thread: before anybody outside is told
of it, by an answer, an order or a process that is started or ended, `durable` or `written` is waited for. While the journal cannot
be written, what was decided is not carried out, and whoever has something to tell waits, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.events import Admitted, Moved, Reprofiled
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Entry, Scheduler
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.scheduler.preview import reasons
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.checkpoints import CHECKPOINTS
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.residents import Residents
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.spec import JobSpec
from runtime.jobside.messages import End, Stopped
from runtime.journal.facts import Fact, Failed, Told
from runtime.journal.record import ColdStarts
from runtime.journal.write import Unwritable
from runtime.machine import Node, Pool
from runtime.machines.forecast import shape_lines
from runtime.machines.nodes import POOLS
from runtime.machines.pools import beyond, too_few_nodes, too_large

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


class Errand(NamedTuple):
    """A job's processes are to be started, where it has none, or to be ended (`ends`)."""

    handle: JobHandle
    ends: bool


class Observer(Protocol):
    """Who watches a run, and changes nothing of it."""

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Facts are in the journal."""

    def on_command(self, command: Command) -> None:
        """A command of the scheduler's has been."""


class RunState:
    """What a run is.

    Args:
        plan: what is to be done. log: where it is written down. state, nodes: of the cluster, as they are when the run begins.
        watches: jobs are known anew when they take longer, and get a better place where they break their SLO; so it is too in a
            run that has jobs with shapes.
        observer: watches it.

    Attributes:
        handles: jobs by id. cold_starts: which of theirs are provisional. residents: those whose state stays on its nodes.
        stopping: the run stops. over: the outcome, or the error that ends it.
        coming: jobs that have not arrived at the policy or been given up yet.
        errands: what is to be done for the processes of jobs; `JobLifecycle` carries it out.
    """

    def __init__(
        self, plan: RunPlan, log: RunLog, state: State, nodes: NodePool, watches: bool, observer: Observer | None = None
    ) -> None:
        def make_policy() -> Any:
            return make_runnable(plan.policy, plan.seed)

        self.plan = plan
        self._make_policy = make_policy
        self.log = log
        self.nodes = nodes
        dispatch = make_dispatch(plan.dispatch)
        watches = watches or any(spec.shapes for spec in plan.specs)
        self.scheduler = Scheduler(state, make_policy(), dispatch, nodes, make_policy if watches else None)
        self._why = self.scheduler.planner.why = {}
        self.handles = {spec.id: JobHandle(spec) for spec in plan.specs}
        self.cold_starts = ColdStarts()
        self.residents = Residents(self.handles, plan.cluster, plan.leave)
        self.stopping = False
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.coming = 0
        self.errands = asyncio.Queue[Errand]()
        self.tasks: set[asyncio.Task[None]] = set()
        self._observer = observer
        self._owed: list[Command] = []  # commands whose entries are not in the journal yet
        self._writable = asyncio.Event()
        self._on_hosts: tuple[int, dict[str, list[Node]]] | None = None  # after so many changes

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
                self._announce(entry)
            self._owed += step.commands
            self._settle()
        except Exception as error:
            self.fail(error)
            raise

    def confine(self, handle: JobHandle, names: frozenset[str]) -> None:
        """A job may have these nodes alone from now on; it waits for a place, or is about to."""
        if self.scheduler.planner.confined.get(handle.id) != names:
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
            self._carry_out(command)
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

    def _announce(self, entry: Entry) -> None:
        if isinstance(entry, Admitted | Moved):
            group = self.scheduler.state.group_of(entry.job_id)
            why = self._why.pop(entry.job_id, "")
            words = f"; {why}{self._figures(entry.job_id)}" if why else ""
            self.log.say(f"{entry.job_id}: {entry.placement.strategy.replace('_', ' ')}, group {group.id}{words}")
        elif isinstance(entry, Reprofiled):
            handle, job = self.handles[entry.job.id], entry.job
            former = handle.job
            handle.learn(job)
            for line in _known_anew(former, job):
                self.log.say(f"{job.id}: {line}")

    def _carry_out(self, command: Command) -> None:
        handle = self.handles[command.job_id]
        match command:
            case commands.Place(_, seating):
                self._place(handle, seating)
            case commands.Lend(_, seating):
                handle.lend(seating)
                self.order(handle)
            case commands.Grant():
                self._grant(handle, command)
            case commands.Shrink(_, parts) | commands.Grow(_, parts):
                handle.tail.use(parts)
                handle.changed.ring()
            case commands.Move():
                handle.begin_move()
            case commands.Evict():
                self.evict(handle)
            case commands.Wait():
                twin = forecast(self.scheduler.planner.shown)
                why = reasons(twin, self._make_policy())[twin.waiting.index(handle.id)]
                self.log.say(f"{handle.id}: waits for nodes: {why}{self._figures(handle.id)}")
            case commands.AtRisk(_, slowdown, moved):
                job = self.scheduler.state.job(handle.id)
                risk = f"{handle.id}: its SLO is at risk: {slowdown:.2f} times its solo time of late, {job.slo:g} at most"
                self.log.say(risk if moved else f"{risk}; there is no better place for it now")

    def _place(self, handle: JobHandle, seating: commands.Seating) -> None:
        handle.permits.follow(self.log.now())
        if handle.place.nodes != {"rollout": seating.rollout_nodes, "training": seating.training_nodes}:
            self.ended(handle)
        handle.take_place(seating, self.scheduler.state.shape(handle.id))
        self.order(handle)

    def _grant(self, handle: JobHandle, grant: commands.Grant) -> None:
        handle.permits.grant(grant, self.log.now(), handle.iteration)
        if grant.phase == "rollout" or not handle.spec.is_asynchronous:
            handle.tail.begin(grant.parts)
        self.admit(handle, grant.phase)

    def _figures(self, job_id: str) -> str:
        """How far the figures of a reason may be trusted, and what gives better ones."""
        words = self.cold_starts.words(job_id)
        return f" ({words}; `rollmux run --no-cache` measures anew)" if words else ""

    def admit(self, handle: JobHandle, phase: HoldName) -> None:
        """Give a granted permit, if the job waits for it and there is room where it is for."""
        if self.residents.admit(handle, phase):
            handle.permits.admit(phase, self.log.now())

    def went(self, handle: JobHandle, pool: Pool) -> None:
        """Note that a job's state has left the devices of its nodes; others may have waited for that."""
        self.residents.went(handle, (pool,))
        self._admit_held_back()

    def ended(self, handle: JobHandle) -> None:
        """Note that a job has nothing on its nodes any more: its processes have ended, or have others now."""
        self.residents.ended(handle)
        self._admit_held_back()

    def _admit_held_back(self) -> None:
        for other, phase in self.residents.held_back():
            self.admit(other, phase)

    def order(self, handle: JobHandle) -> None:
        """Let a job do its next iteration."""
        if handle.is_at_rest:
            self.errands.put_nowait(Errand(handle, ends=False))
        handle.tell(handle.order(str(self.checkpoints(handle.id))), self.log.now())

    def evict(self, handle: JobHandle) -> None:
        """A job's processes are to end, and it with them or only until it is made anew."""
        if handle.gone:  # it has been refused
            return
        if handle.ending.why is None:
            absent = sorted(handle.place.names - ({node.name for node in self.all_nodes()} - self.nodes.missing))
            why = f"its node {absent[0]} has gone" if absent else "it is to move, but has workers and no checkpoint"
            handle.begin_end(End("died", "step", why), again=True)
        self.errands.put_nowait(Errand(handle, ends=True))

    def beside(self, handle: JobHandle) -> tuple[str, ...]:
        """Ids of the jobs that have rollout nodes of a job now."""
        names = [node.name for node in handle.place.nodes["rollout"]]
        return tuple(holder for holder in self.nodes.holders(names) if holder != handle.id)

    def checkpoints(self, job_id: str) -> Path:
        """Folder of a job's."""
        return Path(self.plan.folder) / CHECKPOINTS / job_id

    def all_nodes(self) -> list[Node]:
        """The nodes of the run; the scheduler knows only their names."""
        return [cast("Node", node) for pool in POOLS for node in self.nodes.nodes(pool)]

    def nodes_by_host(self) -> Mapping[str, list[Node]]:
        """The nodes of each host; looked at again when nodes have come or gone."""
        if self._on_hosts is None or self._on_hosts[0] != self.nodes.changes:
            by_host: defaultdict[str, list[Node]] = defaultdict(list)
            for node in self.all_nodes():
                by_host[node.host].append(node)
            self._on_hosts = self.nodes.changes, dict(by_host)
        return self._on_hosts[1]

    def present(self, handle: JobHandle) -> bool:
        """Whether a job has a seat: what it says is of its own processes, and not of those that it had before."""
        return not handle.gone and handle.id in self.scheduler.members.seats

    def beyond(self, spec: JobSpec) -> str | None:
        """Why there can be no place for a job, if there can be none."""
        return self._beyond(spec, self._nodes_left())

    def new_beyond(self, specs: Iterable[JobSpec]) -> Iterator[str | None]:
        """The same of new jobs, or which shape of one there are too few nodes for; later it is only never chosen."""
        left = self._nodes_left()
        return (self._beyond(spec, left) or too_few_nodes(spec, left, " left") for spec in specs)

    def _beyond(self, spec: JobSpec, left: Counter[str]) -> str | None:
        return beyond(spec, self.plan.cluster, self.plan.policy, left)

    def too_large(self, job: Job) -> str | None:
        """Why no node can hold a job, if none can."""
        return too_large(job, self.plan.cluster)

    def _nodes_left(self) -> Counter[str]:
        left: Counter[str] = Counter({pool: self.nodes.count(pool) for pool in self.plan.cluster.sides})
        left.subtract(self.nodes.pool_of(name) for name in self.nodes.missing)
        return left

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


def _known_anew(former: Job | None, job: Job) -> Iterator[str]:
    """What is known of a job from now on, in place of what was: lines for the user."""
    if former is not None and (replaced := _cold_starts(former, job)):
        yield replaced
    elif not job.movable:
        return
    elif former is not None and former.shapes != job.shapes:
        yield from shape_lines(former, job)
    elif former is not None and _kept_gb(former) != _kept_gb(job):
        rollout_gb, training_gb = _kept_gb(job)
        yield f"keeps more of its GPUs than its profile says: {rollout_gb:.2f} and {training_gb:.2f} GB of each from now on"
    else:
        yield (
            f"takes longer than its profile says: rollout {job.rollout.worst_case_s:.2f} s, "
            f"training {job.training.worst_case_s:.2f} s, sync {job.sync_s:.3f} s from now on"
        )


def _kept_gb(job: Job) -> tuple[float, float]:
    return job.rollout.device_gb, job.training.device_gb


def _cold_starts(former: Job, job: Job) -> str:
    """What has been observed of cold starts in place of what was known of them; nothing where that is the same."""
    before, after = ({pool: getattr(one, pool).switch.cold_s for pool in POOLS} for one in (former, job))
    replaced = [pool for pool in POOLS if after[pool] != before[pool]]
    changes = [f"its {pool} took {after[pool]:.2f} s, in place of {before[pool]:.2f} s" for pool in replaced]
    return f"the cold start of {' and of '.join(changes)} in its profile" if changes else ""
