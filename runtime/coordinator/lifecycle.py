"""Beginnings and ends of jobs' processes: they are started and watched, and started again after a death.

A job has processes while it is profiled and while it has a place. One that waits has none, but for the few that are profiled
together: they keep them until all are handed to the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.checkpoints import ResumePoint
from runtime.coordinator.decisions import Errand
from runtime.coordinator.ends import EVICTED, RunEnd, interrupted_slices
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.job_state import JobState
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.profiling import arrival
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import OwnersJob
from runtime.jobside.messages import End
from runtime.journal.facts import Cancelled, Fact, Failed, Restarted
from runtime.machine import Node
from runtime.machines.nodes import POOLS

DEATHS = 3  # of a job in a row, without an iteration done, are enough
_PATROL_S = 0.5
_STARTS_S = 120.0  # a process has this long to begin, however little a job is given otherwise
_LOOK_S = 5.0  # between looks at the machines


class Processes:
    """Starts and ends those of one kind. `handle.actors.controller` is not None while a job has any."""

    def start(self, handle: JobHandle) -> Any:
        """Start a job's processes on the nodes of its place, or let whoever has them know that it has one; returns what stands for
        them."""
        raise NotImplementedError

    async def wait(self, handle: JobHandle) -> End:
        """Wait for the end of a job's processes, whatever it is."""
        raise NotImplementedError

    async def kill(self, handle: JobHandle) -> None:
        """End all processes of a job, and wait until nothing that the job held is in their hands any more."""
        raise NotImplementedError

    async def drop(self, handle: JobHandle) -> None:
        """What `wait` has waited for is over: let go of it, and of whatever the job has left behind."""

    async def close(self) -> None:
        """The run is over: end what jobs have left on this machine."""

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Those of some machines that are no longer there, as far as anybody looks.

        Raises:
            InputError: this one is among them; the jobs on it go on with the run.
        """
        return set()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Nodes of machines that have joined since, none of which is `known`."""
        return ()


class ProcessesByKind:
    """Those of all jobs of a run.

    Args:
        own: of jobs with a task or a class; None where there is no Ray. attached: of jobs that their owners
            start. commands: of those that the service starts.
    """

    def __init__(self, own: Processes | None, attached: Processes, commands: Processes) -> None:
        self.has_own = own is not None
        self.own, self._attached, self._commands = own or Processes(), attached, commands

    def of(self, handle: JobHandle) -> Processes:
        """Those of the kind of a job."""
        if handle.spec.is_attached:
            return self._attached if isinstance(handle.spec, OwnersJob) else self._commands
        if not self.has_own:
            raise InputError(f"job {handle.id}: needs Ray, and this service was started without")
        return self.own

    async def close(self) -> None:
        """The run is over: end what jobs have left on this machine."""
        await asyncio.gather(*(one.close() for one in (self.own, self._attached, self._commands)))


class JobLifecycle:
    """Watches over the jobs of a run.

    Args:
        run: whose. end: of the run. processes: of its jobs.
        stays: nodes may join, and the run goes on when its jobs have ended.

    Attributes:
        node_changes: the nodes that are drained, taken back, or join.
    """

    def __init__(self, run: RunState, end: RunEnd, processes: ProcessesByKind, stays: bool) -> None:
        self._run, self._end, self._processes, self._stays = run, end, processes, stays
        self.node_changes = NodeChanges(run, run.plan.nodes)

    async def carry_out(self) -> None:
        """Start and end processes as long as the run asks for it."""
        while True:
            self._carry_out(await self._run.decisions.errands.get())

    def carry_out_now(self) -> None:
        """Start and end all that the run has asked for until now."""
        while not self._run.decisions.errands.empty():
            self._carry_out(self._run.decisions.errands.get_nowait())

    def _carry_out(self, errand: Errand) -> None:
        self._run.decisions.errands.task_done()
        if errand.ends:
            self._run.spawn(self._clear(errand.handle))
        elif not errand.handle.gone:
            self._start(errand.handle)

    def _start(self, handle: JobHandle) -> None:
        """Start a job's processes, if it has none and is not about to end."""
        if handle.is_at_rest and not self._run.stopping:
            self._end.watched.add(handle)
            handle.actors.begin(self._processes.of(handle).start(handle))
            self._run.spawn(self._watch(handle))

    async def _watch(self, handle: JobHandle) -> None:
        """Wait for a controller's end, whatever it is."""
        run = self._run
        end = await self._processes.of(handle).wait(handle)
        if end.outcome == "done" and end.problem:
            run.log.say(f"{handle.id}: {end.problem}")
        await run.written()
        if end.out_of_memory:
            end = self._make_neighbours_leave(handle, end)
        if end.outcome in ("failed", "died", EVICTED):
            await self.fail(handle, end, again=end.outcome != "failed")
        elif handle.lives and handle.state is not JobState.RESTING:  # the run stops; the job keeps its place for then
            self._halt(handle)
        await self._processes.of(handle).drop(handle)
        run.decisions.ended(handle)
        self._end.watched.discard(handle)
        if handle.state is JobState.RESTING:
            self._rested(handle)
        self._end.check()

    def _make_neighbours_leave(self, handle: JobHandle, end: End) -> End:
        """Return how a job ends that had too little memory of a GPU: it is made again if the state of others can leave."""
        pool = next((pool for pool in POOLS if pool == end.where and pool in handle.permits.holds), None)
        beside = self._run.decisions.residents.ran_out(handle, pool) if pool else ()
        if pool is None or not beside:
            return end
        names = ", ".join(node.name for node in handle.place.nodes_of(pool))
        problem = f"out of memory in its {pool} on {names}, beside state of {', '.join(beside)}, which leaves"
        return replace(end, outcome="died", problem=problem)

    def _rested(self, handle: JobHandle) -> None:
        """A job that waits has no processes any more; it may have got a place meanwhile."""
        handle.end_rest()
        if self._run.present(handle):
            handle.permits.work(self._run.log.now())
            self._start(handle)

    def _halt(self, handle: JobHandle, *notes: Fact) -> None:
        handle.close(halted=True)
        self._run.tell(facts.Halted(handle.id), notes=notes)
        handle.leave_place()
        handle.profile.end()

    async def fail(self, handle: JobHandle, end: End, again: bool) -> None:
        """A job has failed, or has lost a process or hangs.

        Args:
            again: what is left of it ends, and it arrives anew.
        """
        run = self._run
        if not handle.lives or run.over.done():
            return
        dead_machines = await self._dead_machines() if again else set()
        await run.written()
        if not handle.lives:
            return
        handle.begin_end(end, again)
        if handle.id in run.scheduler.members.seats:
            run.tell(facts.Failed(handle.id), *self._losses(dead_machines))
        else:  # it has no nodes: the scheduler need not know
            if dead_machines:
                run.tell(*self._losses(dead_machines))
            run.decisions.evict(handle)

    async def _dead_machines(self) -> set[str]:
        return await self._processes.own.dead_machines({node.machine for node in self._run.capacity.nodes()})

    def _losses(self, machines: set[str]) -> list[facts.Fact]:
        names = sorted(node.name for node in self._run.capacity.nodes() if node.machine in machines)
        for name in names:
            self._run.log.say(f"{name} has gone")
        return [facts.Lost(frozenset(names))] if names else []

    async def cancel(self, handle: JobHandle) -> None:
        """End a job now, whatever it does."""
        run = self._run
        run.log.say(f"{handle.id}: cancelled")
        ending = handle.ending.why is not None
        handle.begin_end(End("cancelled"))
        note = Cancelled(run.log.now(), handle.id)
        if ending:
            run.log.write(note)
        else:
            run.tell(facts.Failed(handle.id), notes=(note,))
        if not handle.spec.is_attached:  # its owner may take its time
            await handle.ending.cleared.wait()

    async def _clear(self, handle: JobHandle) -> None:
        """End a job's processes, and then let the scheduler know."""
        run, job_id = self._run, handle.id
        await run.written()
        await self._processes.of(handle).kill(handle)
        run.decisions.ended(handle)
        folder = run.checkpoints(job_id)
        if handle.spec.is_attached:  # its owner has the checkpoints
            resume = ResumePoint(handle.iteration, None, ())
        else:
            resume = await asyncio.to_thread(handle.saved.go_back, folder, max(0, handle.iteration))
        await run.written()
        handle.ending.clear()
        if handle.gone:  # it has come to its end meanwhile
            return
        slices = interrupted_slices(run, handle)
        assert handle.ending.why is not None
        if run.stopping and handle.spec.is_attached:
            self._halt(handle)  # what it holds is held when the run goes on
        elif run.stopping and handle.ending.again:
            self._halt(handle, *slices)
        elif handle.ending.again and not handle.is_over and (_deaths(handle) < DEATHS or isinstance(handle.spec, OwnersJob)):
            self._begin_anew(handle, resume, slices)
        else:
            self._give_up(handle, slices)
        handle.profile.end()
        self._end.check()

    def _give_up(self, handle: JobHandle, slices: tuple[Fact, ...]) -> None:
        """A job has come to a bad end, or its owner has said late that it is done."""
        run, end = self._run, handle.ending.why
        assert end is not None
        notes = slices
        if handle.is_over:
            run.log.say(f"{handle.id}: could not be measured alone: {end.problem}")
        elif end.outcome not in ("cancelled", "done"):
            problem = end.problem
            if handle.ending.again:
                run.log.say(f"{handle.id}: {problem}; is given up")
                problem = f"{problem} ({DEATHS} times in a row without an iteration done)"
            notes += (Failed(run.log.now(), handle.id, end.where, problem, end.details),)
            run.log.say(f"{handle.id}: FAILED in {end.where}: {problem}")
        handle.close()
        waits = handle.id in run.scheduler.state.waiting
        run.tell(facts.Cleared(handle.id), *([facts.Failed(handle.id)] if waits else []), notes=notes)
        handle.leave_place()

    def _begin_anew(self, handle: JobHandle, resume: ResumePoint, slices: tuple[Fact, ...]) -> None:
        """A job that has died is made anew, and arrives again if it had a place."""
        run, job_id = self._run, handle.id
        assert handle.ending.why is not None
        begins = resume.iterations
        why = handle.ending.why.problem
        note = Restarted(run.log.now(), job_id, begins, resume.problems[0] if resume.problems else why)
        notes = slices if handle.spec.is_attached else (*slices, note)  # its owner sets it back, if at all
        run.log.say(f"{job_id}: {why}; goes on at iteration {begins + 1}")
        successor = handle.successor(begins, _deaths(handle), note.why)
        placed = run.scheduler.state.is_running(job_id)
        handle.close()
        handle.leave_place()
        run.handles[job_id] = successor
        news: list[facts.Fact] = [facts.Cleared(job_id)]
        problem = None
        if placed and successor.job is not None and not successor.place.parks:
            problem = run.capacity.beyond(successor.spec) or run.capacity.too_large(successor.job)
            if problem is None:
                news += arrival(run, successor, handle.ending.why.outcome == EVICTED)
        run.tell(*news, notes=notes)
        if problem is not None:
            run.refuse(successor, problem)

    async def patrol(self) -> None:
        """Look for jobs that hang, and for machines that have gone."""
        run = self._run
        last_look_s = run.log.now()
        while True:
            await asyncio.sleep(_PATROL_S)
            await run.written()
            now_s = run.log.now()
            for handle in [*run.handles.values()]:
                if handle.gone or handle.spec.is_attached:  # of those leases are what counts
                    continue
                for since_s, phase in _busy_since(handle):
                    limit_s = self._deadline_s(handle, phase)
                    if now_s - since_s <= limit_s:
                        continue
                    where = phase or "step"
                    what = f"its {where}" if phase else "what it does between its phases"
                    problem = f"{what} hangs: it has not ended after {limit_s:.0f} s"
                    again = handle.job is not None  # a profile holds nodes for an hour, which others wait for
                    await self.fail(handle, End("died" if again else "failed", where, problem), again)
                    break
            if now_s - last_look_s > _LOOK_S:
                last_look_s = now_s
                dead_machines = await self._dead_machines()
                await run.written()
                if losses := self._losses(dead_machines):
                    run.tell(*losses)
                if self._stays and (joined := await self._processes.own.joined_nodes([*self.node_changes.known.values()])):
                    await run.written()
                    self.node_changes.join(joined)

    def _deadline_s(self, handle: JobHandle, phase: HoldName | None) -> float:
        """How long a job may take for a phase, or for what it does between two of them."""
        timeouts, job = self._run.plan.timeouts, handle.job
        if not handle.actors.has_come:
            return max(timeouts.least_s, _STARTS_S)
        if job is None or handle.iteration == PROFILE:
            return timeouts.profile_s
        phases: dict[str, Any] = job.phases(handle.place.shape)._asdict()
        worst_s = {pool: phase.worst_case_s + phase.switch.warm_s + phase.switch.cold_s for pool, phase in phases.items()}
        own_s: float = worst_s[phase] if phase else sum(worst_s.values()) + job.sync_s + handle.saved.seconds
        return max(timeouts.least_s, timeouts.times * own_s)


def _busy_since(handle: JobHandle) -> list[tuple[float, HoldName | None]]:
    """Since when a job has had no need to wait, and for which phase; of an asynchronous job on either side."""
    if handle.spec.is_asynchronous and handle.iteration != PROFILE and handle.actors.has_come:
        running = [(hold.since_s, phase) for phase, hold in handle.permits.holds.items() if hold.since_s]
        if running or any(not waits.done() for waits in handle.permits.waits.values()):
            return [*running]
    return [] if handle.permits.since_s is None else [(handle.permits.since_s, handle.permits.phase)]


def _deaths(handle: JobHandle) -> int:
    """Of a job that is ending, in a row; making room is none."""
    assert handle.ending.why is not None
    return handle.ending.deaths + (handle.ending.why.outcome != EVICTED)
