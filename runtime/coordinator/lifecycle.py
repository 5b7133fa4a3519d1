"""The beginnings and ends of jobs' processes: they are started, watched and ended, and transitions say what follows.

A job has processes while it is profiled and while it has a place. A waiting job has none, except the few that are profiled
together: they keep them until all are handed to the policy.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from rollmux_env.errors import InputError
from runtime.checkpoints import ResumePoint
from runtime.coordinator.consequences import Errand
from runtime.coordinator.ends import EVICTED, halted
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.overdue import hanging
from runtime.coordinator.planned_drains import PlannedDrains
from runtime.coordinator.restarts import cancelled, cleared, failed, lost, out_of_memory
from runtime.coordinator.run_loop import RunLoop
from runtime.jobs.spec import OwnersJob
from runtime.jobside.messages import JobEnd
from runtime.machine import Node

_PATROL_S = 0.5
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

    Attributes:
        has_own: Whether there is a backend of jobs with a task or a class.
        machines: Backend that looks for machines that are gone or have joined.
    """

    def __init__(self, own: ProcessBackend | None, attached: ProcessBackend, commands: ProcessBackend) -> None:
        self._own, self._attached, self._commands = own, attached, commands
        self.has_own, self.machines = own is not None, own or attached

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

    async def close(self) -> None:
        """End what jobs have left on this machine, at the end of the run."""
        await asyncio.gather(*(one.close() for one in (self._own, self._attached, self._commands) if one is not None))


class JobLifecycle:
    """Supervisor of the jobs of a run.

    Args:
        run: The run.
        processes: Backends of the jobs' processes.

    Attributes:
        node_changes: Drains, undrains and joins of nodes.
        planned_drains: Drains that begin later.
    """

    def __init__(self, run: RunLoop, processes: ProcessBackends) -> None:
        self._run, self._processes = run, processes
        self.node_changes = NodeChanges(run, run.plan.nodes)
        self.planned_drains = PlannedDrains(run, self.node_changes)

    async def carry_out(self) -> None:
        """Start and end processes as errands request it, until cancelled."""
        while True:
            self._carry_out(await self._run.errands.get())

    def carry_out_now(self) -> None:
        """Start and end the processes that have been requested so far."""
        while not self._run.errands.empty():
            self._carry_out(self._run.errands.get_nowait())

    def _carry_out(self, errand: Errand) -> None:
        self._run.errands.task_done()
        if errand.ends:
            self._run.spawn(self._clear(errand.handle))
        elif not errand.handle.life.is_gone:
            self._start(errand.handle)

    def _start(self, handle: JobHandle) -> None:
        """Start a job's processes, if it has none and is not about to end."""
        if handle.is_at_rest and not self._run.stopping:
            self._run.watched.add(handle)
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
            end = out_of_memory(run, handle, end)
        if end.outcome in ("failed", "died", EVICTED):
            await self.fail(handle, end, again=end.outcome != "failed")
        elif handle.life.is_alive and not handle.life.is_resting:  # the run stops; the job has its place when the run continues
            run.apply(halted(handle))
            handle.profile.end()
        await self._processes.of(handle).drop(handle)
        run.on_processes_ended(handle, run.log.now())
        self._run.watched.discard(handle)
        if handle.life.is_resting:
            self._rested(handle)
        self._run.check_end()

    def _rested(self, handle: JobHandle) -> None:
        """Handle the end of a waiting job's processes. The job may have got a place meanwhile."""
        handle.end_rest()
        if self._run.has_seat(handle):
            handle.permits.set_busy_since(self._run.log.now())
            self._start(handle)

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
        if handle.life.is_alive:
            run.apply(failed(run, handle, end, again, dead_machines, run.log.now()))

    async def _dead_machines(self) -> set[str]:
        return await self._processes.machines.dead_machines({node.machine for node in self._run.capacity.nodes()})

    async def cancel(self, handle: JobHandle) -> None:
        """End a job now, in whatever phase it is."""
        self._run.apply(cancelled(handle, self._run.log.now()))
        if not handle.spec.is_attached:  # the owner of an attached job may take long
            await handle.ending.cleared.wait()

    async def _clear(self, handle: JobHandle) -> None:
        """End a job's processes, and then restart it or let it end."""
        run = self._run
        await run.written()
        await self._processes.of(handle).kill(handle)
        run.on_processes_ended(handle, run.log.now())
        if handle.spec.is_attached:  # its owner has the checkpoints
            resume = ResumePoint(handle.iteration, None, ())
        else:
            resume = await asyncio.to_thread(handle.checkpoints.go_back, run.checkpoints(handle.id), max(0, handle.iteration))
        await run.written()
        handle.ending.clear()
        if handle.life.is_gone:  # the job has ended meanwhile
            return
        for follows in cleared(run, handle, resume, run.log.now):
            run.apply(follows)
        handle.profile.end()
        self._run.check_end()

    async def patrol(self) -> None:
        """Look for jobs that hang, and for machines that are gone, until cancelled."""
        run = self._run
        last_s = last_look_s = run.log.now()
        while True:
            await asyncio.sleep(_PATROL_S)
            await run.written()
            now_s = run.log.now()
            passed_s, last_s = min(now_s - last_s, _LOOK_S), now_s  # more if this process was suspended
            for handle, end in [*hanging(run, now_s, passed_s)]:
                await self.fail(handle, end, again=end.outcome == "died")
            if now_s - last_look_s > _LOOK_S:
                last_look_s = now_s
                dead_machines = await self._dead_machines()
                await run.written()
                run.apply(lost(run, dead_machines))
                known = [*self.node_changes.known.values()]
                if run.keeps_running and (joined := await self._processes.machines.joined_nodes(known)):
                    await run.written()
                    self.node_changes.join(joined)
