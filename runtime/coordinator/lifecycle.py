"""The beginnings and ends of jobs' processes: they are started and watched, and started again after a death.

A job has processes while it is profiled and while it has a place. A waiting job has none, except the few that are profiled
together: they keep them until all are handed to the policy.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.checkpoints import ResumePoint
from runtime.coordinator.decisions import Errand
from runtime.coordinator.ends import EVICTED, PARKED, RunEnd, interrupted_slices
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.planned_drains import PlannedDrains
from runtime.coordinator.profiling import arrival
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import OwnersJob
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import Fact, JobCancelled, JobFailed, JobRestarted
from runtime.machine import Node
from runtime.machines.nodes import POOLS

DEATHS = 3  # consecutive deaths without a completed iteration after which a job is given up
_PATROL_S = 0.5
_STARTS_S = 120.0  # shortest limit on the start of a process
_LOOK_S = 5.0  # interval of looks at the machines


class ProcessBackend(ABC):
    """Backend of the processes of one kind of jobs. `handle.processes.controller` is not None while a job has processes."""

    @abstractmethod
    def start(self, handle: JobHandle) -> Any:
        """Start a job's processes on the nodes of its place, or tell its owner that it has one; return a handle of them."""

    @abstractmethod
    async def wait(self, handle: JobHandle) -> JobEnd:
        """Wait for the end of a job's processes, and return how they ended."""

    @abstractmethod
    async def kill(self, handle: JobHandle) -> None:
        """End all processes of a job, and wait until they use nothing that the job held."""

    async def drop(self, handle: JobHandle) -> None:  # noqa: B027 - a backend may have nothing to free
        """Free what belongs to processes that have ended, and end what the job has left behind."""

    async def close(self) -> None:  # noqa: B027 - jobs may leave nothing
        """End what jobs have left on this machine, at the end of the run."""

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Return the machines, of those named, that are gone, as far as the backend checks.

        Raises:
            InputError: If this machine is one of them; its jobs continue with the run.
        """
        return set()

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes of machines that have joined and are not `known`."""
        return ()


class ProcessBackends:
    """Routes process management to the backend of each kind of job.

    Args:
        own: Backend of jobs with a task or a class, or None without Ray.
        attached: Backend of jobs that their owners start.
        commands: Backend of jobs with a command, which the service starts.
    """

    def __init__(self, own: ProcessBackend | None, attached: ProcessBackend, commands: ProcessBackend) -> None:
        self._own, self._attached, self._commands = own, attached, commands

    @property
    def has_own(self) -> bool:
        """Whether there is a backend of jobs with a task or a class."""
        return self._own is not None

    def of(self, handle: JobHandle) -> ProcessBackend:
        """Return the backend that runs a job's processes.

        Raises:
            InputError: If the job needs Ray and there is none; one line.
        """
        if handle.spec.is_attached:
            return self._attached if isinstance(handle.spec, OwnersJob) else self._commands
        if self._own is None:
            raise InputError(f"job {handle.id}: needs Ray, and this service was started without")
        return self._own

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Return the machines, of those named, that are gone; see `ProcessBackend.dead_machines`."""
        return set() if self._own is None else await self._own.dead_machines(machines)

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes of machines that have joined and are not `known`."""
        return () if self._own is None else await self._own.joined_nodes(known)

    async def close(self) -> None:
        """End what jobs have left on this machine, at the end of the run."""
        await asyncio.gather(*(one.close() for one in (self._own, self._attached, self._commands) if one is not None))


class JobLifecycle:
    """Supervisor of the jobs of a run.

    Args:
        run: State of the run.
        end: Decision whether the run is over.
        processes: Backends of the jobs' processes.
        keeps_running: Whether nodes may join, and the run continues when all of its jobs have ended.

    Attributes:
        node_changes: Drains, undrains and joins of nodes.
        planned_drains: Drains that begin later.
    """

    def __init__(self, run: RunState, end: RunEnd, processes: ProcessBackends, keeps_running: bool) -> None:
        self._run, self._end, self._processes, self._keeps_running = run, end, processes, keeps_running
        self.node_changes = NodeChanges(run, run.plan.nodes)
        self.planned_drains = PlannedDrains(run, self.node_changes)

    async def carry_out(self) -> None:
        """Start and end processes as errands request it, until cancelled."""
        while True:
            self._carry_out(await self._run.decisions.errands.get())

    def carry_out_now(self) -> None:
        """Start and end the processes that have been requested so far."""
        while not self._run.decisions.errands.empty():
            self._carry_out(self._run.decisions.errands.get_nowait())

    def _carry_out(self, errand: Errand) -> None:
        self._run.decisions.errands.task_done()
        if errand.ends:
            self._run.spawn(self._clear(errand.handle))
        elif not errand.handle.life.is_gone:
            self._start(errand.handle)

    def _start(self, handle: JobHandle) -> None:
        """Start a job's processes, if it has none and is not about to end."""
        if handle.is_at_rest and not self._run.stopping:
            self._end.watched.add(handle)
            handle.processes.begin(self._processes.of(handle).start(handle))
            self._run.spawn(self._watch(handle))

    async def _watch(self, handle: JobHandle) -> None:
        """Wait for the end of a job's processes, and handle it."""
        run = self._run
        end = await self._processes.of(handle).wait(handle)
        if end.outcome == "done" and end.problem:
            run.log.say(f"{handle.id}: {end.problem}")
        await run.written()
        if end.out_of_memory:
            end = self._make_neighbours_leave(handle, end)
        if end.outcome in ("failed", "died", EVICTED):
            await self.fail(handle, end, again=end.outcome != "failed")
        elif handle.life.is_alive and not handle.life.is_resting:  # the run stops; the job has its place when the run continues
            self._halt(handle)
        await self._processes.of(handle).drop(handle)
        run.decisions.on_processes_ended(handle)
        self._end.watched.discard(handle)
        if handle.life.is_resting:
            self._rested(handle)
        self._end.check()

    def _make_neighbours_leave(self, handle: JobHandle, end: JobEnd) -> JobEnd:
        """Return how a job ends that had too little memory of a GPU: it is made again if the state of others can leave."""
        pool = next((pool for pool in POOLS if pool == end.where and pool in handle.permits.holds), None)
        beside = self._run.decisions.residents.record_out_of_memory(handle, pool) if pool else ()
        if pool is None or not beside:
            return end
        names = ", ".join(node.name for node in handle.place.nodes_of(pool))
        problem = f"out of memory in its {pool} on {names}, beside state of {', '.join(beside)}, which leaves"
        return replace(end, outcome="died", problem=problem)

    def _rested(self, handle: JobHandle) -> None:
        """Handle the end of a waiting job's processes. The job may have got a place meanwhile."""
        handle.end_rest()
        if self._run.has_seat(handle):
            handle.permits.set_busy_since(self._run.log.now())
            self._start(handle)

    def _halt(self, handle: JobHandle, *notes: Fact) -> None:
        handle.close(halted=True)
        self._run.inform_scheduler(facts.Halted(handle.id), entries=notes)
        handle.leave_place()
        handle.profile.end()

    async def fail(self, handle: JobHandle, end: JobEnd, again: bool) -> None:
        """Handle the failure of a job, the loss of a process, or a job that hangs.

        Args:
            handle: The job.
            end: Outcome and reason.
            again: Whether its remains are ended and the job arrives again.
        """
        run = self._run
        if not handle.life.is_alive or run.over.done():
            return
        dead_machines = await self._dead_machines() if again else set()
        await run.written()
        if not handle.life.is_alive:
            return
        handle.begin_end(end, again)
        if handle.id in run.scheduler.members.seats:
            run.inform_scheduler(facts.Failed(handle.id), *self._losses(dead_machines))
        else:  # the job has no nodes, so the scheduler is not informed
            if dead_machines:
                run.inform_scheduler(*self._losses(dead_machines))
            run.decisions.evict(handle)

    async def _dead_machines(self) -> set[str]:
        return await self._processes.dead_machines({node.machine for node in self._run.capacity.nodes()})

    def _losses(self, machines: set[str]) -> list[facts.Fact]:
        names = sorted(node.name for node in self._run.capacity.nodes() if node.machine in machines)
        for name in names:
            self._run.log.say(f"{name} has gone")
        return [facts.Lost(frozenset(names))] if names else []

    async def cancel(self, handle: JobHandle) -> None:
        """End a job now, in whatever phase it is."""
        run = self._run
        run.log.say(f"{handle.id}: cancelled")
        ending = handle.ending.why is not None
        handle.begin_end(JobEnd("cancelled"))
        note = JobCancelled(run.log.now(), handle.id)
        if ending:
            run.log.write(note)
        else:
            run.inform_scheduler(facts.Failed(handle.id), entries=(note,))
        if not handle.spec.is_attached:  # the owner of an attached job may take long
            await handle.ending.cleared.wait()

    async def _clear(self, handle: JobHandle) -> None:
        """End a job's processes, and then inform the scheduler."""
        run, job_id = self._run, handle.id
        await run.written()
        await self._processes.of(handle).kill(handle)
        run.decisions.on_processes_ended(handle)
        folder = run.checkpoints(job_id)
        if handle.spec.is_attached:  # its owner has the checkpoints
            resume = ResumePoint(handle.iteration, None, ())
        else:
            resume = await asyncio.to_thread(handle.checkpoints.go_back, folder, max(0, handle.iteration))
        await run.written()
        handle.ending.clear()
        if handle.life.is_gone:  # the job has ended meanwhile
            return
        slices = interrupted_slices(run, handle)
        assert handle.ending.why is not None
        if run.stopping and handle.spec.is_attached:
            self._halt(handle)  # it has its nodes again when the run continues
        elif run.stopping and handle.ending.restarts:
            self._halt(handle, *slices)
        elif handle.ending.restarts and not handle.is_over and (_deaths(handle) < DEATHS or isinstance(handle.spec, OwnersJob)):
            self._begin_anew(handle, resume, slices)
        else:
            self._give_up(handle, slices)
        handle.profile.end()
        self._end.check()

    def _give_up(self, handle: JobHandle, slices: tuple[Fact, ...]) -> None:
        """End a job that has failed for good, or whose owner has reported its completion late."""
        run, end = self._run, handle.ending.why
        assert end is not None
        notes = slices
        if handle.is_over:
            run.log.say(f"{handle.id}: could not be measured alone: {end.problem}")
        elif end.outcome not in ("cancelled", "done"):
            problem = end.problem
            if handle.ending.restarts:
                run.log.say(f"{handle.id}: {problem}; is given up")
                problem = f"{problem} ({DEATHS} times in a row without an iteration done)"
            notes += (JobFailed(run.log.now(), handle.id, end.where, problem, end.details),)
            run.log.say(f"{handle.id}: FAILED in {end.where}: {problem}")
        handle.close()
        waits = handle.id in run.scheduler.state.waiting
        run.inform_scheduler(facts.Cleared(handle.id), *([facts.Failed(handle.id)] if waits else []), entries=notes)
        handle.leave_place()

    def _begin_anew(self, handle: JobHandle, resume: ResumePoint, slices: tuple[Fact, ...]) -> None:
        """Restart a job that has died; it arrives again if it had a place, and waits if it is parked."""
        run, job_id = self._run, handle.id
        assert handle.ending.why is not None
        begins = resume.iterations
        why, parked = handle.ending.why.problem, self._has_yielded(handle)
        note = JobRestarted(run.log.now(), job_id, begins, resume.problems[0] if resume.problems else why)
        goes_back = not handle.spec.is_attached and not (parked and begins == handle.iteration)  # owners go back themselves
        notes = (*slices, note) if goes_back else slices
        run.log.say(f"{job_id}: {why}; continues at iteration {begins + 1}")
        successor = handle.successor(begins, _deaths(handle), note.why)
        placed, waits = run.scheduler.state.is_running(job_id), job_id in run.scheduler.state.waiting
        busy_s = handle.permits.busy_s
        handle.close()
        handle.leave_place()
        run.handles[job_id] = successor
        if parked:
            successor.wait_parked(busy_s)
            run.inform_scheduler(facts.YieldedPlace(job_id), entries=notes)
            return
        if waits:  # it stays in the queue of the policy
            successor.arrive()
        reports: list[facts.Fact] = [facts.Cleared(job_id)]
        problem = None
        if placed and successor.job is not None and not successor.place.awaits_owner:
            problem = run.capacity.problem_of_placing(successor.spec) or run.capacity.too_large(successor.job)
            if problem is None:
                reports += arrival(run, successor, handle.ending.why.outcome == EVICTED)
        run.inform_scheduler(*reports, entries=notes)
        if problem is not None:
            run.refuse(successor, problem)

    def _has_yielded(self, handle: JobHandle) -> bool:
        """Return whether a job has ended because it is parked, and still has its place."""
        assert handle.ending.why is not None
        seat = self._run.scheduler.members.seats.get(handle.id)
        return handle.ending.why.outcome == PARKED and seat is not None and not seat.failed

    async def patrol(self) -> None:
        """Look for jobs that hang, and for machines that are gone, until cancelled."""
        run = self._run
        last_look_s = run.log.now()
        while True:
            await asyncio.sleep(_PATROL_S)
            await run.written()
            now_s = run.log.now()
            for handle in [*run.handles.values()]:
                if handle.life.is_gone or handle.spec.is_attached:  # leases limit attached jobs
                    continue
                for since_s, phase in _busy_since(handle):
                    limit_s = self._deadline_s(handle, phase)
                    if now_s - since_s <= limit_s:
                        continue
                    where = phase or "step"
                    what = f"its {where}" if phase else "what it does between its phases"
                    problem = f"{what} hangs: it has not ended after {limit_s:.0f} s"
                    again = handle.job is not None  # a profile that hangs is not repeated: it holds nodes for an hour
                    await self.fail(handle, JobEnd("died" if again else "failed", where, problem), again)
                    break
            if now_s - last_look_s > _LOOK_S:
                last_look_s = now_s
                dead_machines = await self._dead_machines()
                await run.written()
                if losses := self._losses(dead_machines):
                    run.inform_scheduler(*losses)
                if self._keeps_running and (joined := await self._processes.joined_nodes([*self.node_changes.known.values()])):
                    await run.written()
                    self.node_changes.join(joined)

    def _deadline_s(self, handle: JobHandle, phase: HoldName | None) -> float:
        """Return the longest time for a phase, or for the work between two phases, in seconds."""
        timeouts, job = self._run.plan.timeouts, handle.job
        if not handle.processes.had_contact:
            return max(timeouts.least_s, _STARTS_S)
        if job is None or handle.iteration == PROFILE:
            return timeouts.profile_s
        phases: dict[str, Any] = job.phases(handle.place.shape)._asdict()
        worst_s = {pool: phase.worst_case_s + phase.switch.warm_s + phase.switch.cold_s for pool, phase in phases.items()}
        own_s: float = worst_s[phase] if phase else sum(worst_s.values()) + job.sync_s + handle.checkpoints.seconds
        return max(timeouts.least_s, timeouts.times * own_s)


def _busy_since(handle: JobHandle) -> list[tuple[float, HoldName | None]]:
    """Return the times since which a job has had no reason to wait, each with its phase. An asynchronous job may have two."""
    if handle.spec.is_asynchronous and handle.iteration != PROFILE and handle.processes.had_contact:
        running = [(hold.ready_s, phase) for phase, hold in handle.permits.holds.items() if hold.ready_s]
        if running or any(not waits.done() for waits in handle.permits.futures.values()):
            return [*running]
    return [] if handle.permits.busy_since_s is None else [(handle.permits.busy_since_s, handle.permits.phase)]


def _deaths(handle: JobHandle) -> int:
    """Return the number of consecutive deaths of a job that is ending. One that gives up its place has not died."""
    assert handle.ending.why is not None
    return handle.ending.deaths + (handle.ending.why.outcome not in (EVICTED, PARKED))
