"""The processes of jobs on Ray: their controllers are started, watched and killed, and machines looked at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runtime.execution.controller import Controller
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.execution.nodes import dead_machines
from runtime.output import LOGS

_ENDS_S = 30.0  # a process that has been killed ends within this time, or is in nobody's reach


class Processes:
    """Starts and ends them.

    Args:
        folder: of the run. coordinator: the actor that controllers talk to.
    """

    def __init__(self, folder: str, coordinator: Any) -> None:
        self._folder = folder
        self._coordinator = coordinator

    def start(self, handle: JobHandle) -> None:
        """Start a job's controller."""
        here = NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )  # no other machine takes it along
        actor = ray.remote(Controller).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        logs = str(Path(self._folder) / LOGS / handle.id)
        handle.controller = actor.remote(handle.spec, self._coordinator, logs, handle.restarted)

    async def wait(self, handle: JobHandle) -> End:
        """Wait for the end of a job's controller, whatever it is."""
        try:
            end: End = await handle.controller.run.remote()
        except Exception:  # of Ray, which cannot reach it
            end = End("died", "step", "its controller has died")
        return end

    async def kill(self, handle: JobHandle) -> None:
        """Kill all processes of a job, and wait until they have ended."""
        actors = [*handle.workers, *([handle.controller] if handle.controller is not None else [])]
        for actor in actors:
            ray.kill(actor)
        for actor in actors:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                while True:
                    await asyncio.wait_for(actor.identity.remote(), _ENDS_S)
                    await asyncio.sleep(0.01)

    def drop(self, handle: JobHandle) -> None:
        """A controller that has come to its end is needed no more."""
        ray.kill(handle.controller)

    async def dead_machines(self, machines: Collection[str]) -> set[str]:
        """Those of some machines that are no longer there."""
        return await asyncio.to_thread(dead_machines, machines)
