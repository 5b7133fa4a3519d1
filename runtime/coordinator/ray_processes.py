"""The processes of jobs on Ray: their controllers are started, watched and killed, and machines are checked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ray

from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import ProcessBackend
from runtime.jobside.controller import Controller
from runtime.jobside.messages import JobEnd
from runtime.jobside.worker import on_machine
from runtime.machine import Node
from runtime.machines.job_processes import end_job_processes, started
from runtime.machines.nodes import dead_machines, new_nodes
from runtime.machines.ray_health import RayDied
from runtime.output import LOGS

_LOOKS_S = 2.0
_ENDS_S = 30.0  # longest wait for the end of a killed process


async def _answer(call: Any) -> JobEnd:
    end: JobEnd = await call
    return end


class RayProcesses(ProcessBackend):
    """Backend of jobs with a task or a class.

    Args:
        folder: Folder of the run.
        coordinator: Handle of the actor to which controllers talk.
        models: Whether the models of completed jobs are written into the folder.
    """

    def __init__(self, folder: str, coordinator: Any, models: bool = False) -> None:
        self._folder = folder
        self._coordinator = coordinator
        self._models = models

    def start(self, handle: JobHandle) -> Any:
        """Start a job's controller, and return its handle."""
        here = ray.get_runtime_context().get_node_id()  # on this machine, so that it does not die with another one
        actor = ray.remote(Controller).options(**on_machine(here), max_concurrency=2)
        return actor.remote(handle.spec, self._coordinator, self._logs(handle), handle.ending.restarted, self._models)

    async def wait(self, handle: JobHandle) -> JobEnd:
        """Wait for the end of a job's controller, and return how it ended."""
        controller = handle.processes.controller
        run = asyncio.ensure_future(_answer(controller.run.remote()))
        try:
            pid = await controller.identity.remote()
            here = ray.get_runtime_context().get_node_id()
            handle.processes.note_process(here, pid, started(pid))
            while not (await asyncio.wait([run], timeout=_LOOKS_S))[0]:
                if not started(pid):  # forked processes keep its sockets open, so that Ray does not notice its death
                    await self._sweep(self._logs(handle), handle)
            return await run
        except Exception:  # Ray cannot reach it
            return JobEnd("died", "step", "its controller has died")
        finally:
            run.cancel()

    async def kill(self, handle: JobHandle) -> None:
        """Kill all processes of a job, and wait until they have ended."""
        actors = [*handle.processes.workers, *([handle.processes.controller] if handle.processes.controller is not None else [])]
        for actor in actors:
            ray.kill(actor)
        for actor in actors:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                while True:
                    await asyncio.wait_for(actor.identity.remote(), _ENDS_S)
                    await asyncio.sleep(0.01)
        await self._sweep(self._logs(handle), handle)

    async def drop(self, handle: JobHandle) -> None:
        """End a controller that has finished, and everything that the job has started."""
        ray.kill(handle.processes.controller)
        await self._sweep(self._logs(handle), handle)

    async def close(self) -> None:
        """End what jobs have left on this machine, at the end of the run."""
        await asyncio.to_thread(end_job_processes, str(Path(self._folder) / LOGS))

    def _logs(self, handle: JobHandle) -> str:
        return str(Path(self._folder) / LOGS / handle.id)

    async def _sweep(self, logs: str, handle: JobHandle) -> None:
        """End what a job has started, on all of its machines."""
        here, known = ray.get_runtime_context().get_node_id(), handle.processes.processes
        others = {node.machine for nodes in handle.place.nodes.values() for node in nodes} - {here}
        ends = asyncio.to_thread(end_job_processes, logs, known.get(here, ()))
        await asyncio.gather(ends, *(self._sweep_on(machine, logs, known.get(machine, ())) for machine in others))

    async def _sweep_on(self, machine: str, logs: str, known: Collection[tuple[int, int]]) -> None:
        """End what a job has started on another machine, unless that machine is gone, for which Ray would wait half a minute."""
        task: Any = ray.remote(end_job_processes)
        call = task.options(**on_machine(machine)).remote(logs, [*known])
        for _ in range(round(_ENDS_S / _LOOKS_S)):
            if machine in await asyncio.to_thread(dead_machines, [machine]):
                return
            if (await asyncio.to_thread(ray.wait, [call], timeout=_LOOKS_S))[0]:
                return

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Return the machines, of those named, that are gone.

        Raises:
            RayDied: If this machine is one of them; its jobs continue with the run.
        """
        dead = await asyncio.to_thread(dead_machines, machines)
        if ray.get_runtime_context().get_node_id() in dead:
            raise RayDied("Ray's raylet on this machine has died")
        return dead

    async def joined_nodes(self, known: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes of machines that have joined the Ray cluster. Machines without the resource of a pool have none."""
        machines = await asyncio.to_thread(ray.nodes)
        return new_nodes(machines, {node.pool for node in known}, known)
